"""Weights whose file does not verify get a new name at once; a push comes after the row; each name's cost is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentrl.errors import WeightsCorrupt
from agentrl.store.contract import RunSpec
from agentrl.store.loads import PublishCost
from agentrl.store.memory import MemoryStore
from agentrl.trainer import publish
from agentrl.trainer.publish import ATTEMPTS, Named, Publisher
from agentrl.types import PolicyVersion
from agentrl.weights.pruning import Pruning

WEIGHTS = [("a", torch.ones(2))]


class Disk:
    """Damages the first files that are verified."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def verify(self, uri: str, expected: str) -> None:
        self.bad -= 1
        if self.bad >= 0:
            raise WeightsCorrupt(uri)


def publisher(folder: Path, monkeypatch: pytest.MonkeyPatch, bad: int) -> Publisher:
    monkeypatch.setattr(publish, "verify", Disk(bad).verify)
    store = MemoryStore()
    run = store.create_run(RunSpec("r", "toy", {}, "h", 0, lag_bound=0, batch_min=1, batch_max=1), {})
    start = store.start_trainer(run.id, owner="t", lease_s=60, checkpoint=None)
    return Publisher(store, run.id, start, folder)


def test_failed_version_waits__staged_again_under_a_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = publisher(tmp_path, monkeypatch, bad=1)
    version = made.publish(lambda: WEIGHTS, parent=None, updates=0)
    assert (version.version, version.parent, version.updates) == (1, 0, 0)
    assert made.store.version(made.run, 0).status == "failed"
    assert made.store.version(made.run, 1).status == "published"


def test_publish_waits_for_pull__no_engine_has_to_load_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = publisher(tmp_path, monkeypatch, bad=0)
    version = made.publish(lambda: WEIGHTS, parent=None, updates=0)
    newest = made.store.newest_version(made.run)
    assert newest is not None
    assert (newest.version, newest.status) == (version.version, "published")


def test_disk_that_damages_every_file__gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = publisher(tmp_path, monkeypatch, bad=ATTEMPTS)
    with pytest.raises(WeightsCorrupt, match="check the disk"):
        made.publish(lambda: WEIGHTS, parent=None, updates=0)
    assert made.store.newest_version(made.run) is None


def test_staged_first__a_push_finds_the_row_and_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = publisher(tmp_path, monkeypatch, bad=0)
    seen: list[tuple[str, bool, bool]] = []

    def push(stage: Callable[[], PolicyVersion], tensors: Named) -> PolicyVersion:
        assert made.store.newest_version(made.run) is None
        version = stage()
        seen.append((made.store.version(made.run, version.version).status, Path(version.uri).is_file(), tensors == WEIGHTS))
        return version

    made.push = push
    version = made.publish(lambda: WEIGHTS, parent=None, updates=0)
    assert seen == [("staged", True, True)]
    assert made.store.version(made.run, version.version).status == "published"


def test_failed_push__is_published_since_workers_load_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = publisher(tmp_path, monkeypatch, bad=0)
    made.push = lambda stage, tensors: stage()  # what `ServerPush` does when no server takes it
    version = made.publish(lambda: WEIGHTS, parent=None, updates=0)
    assert made.store.version(made.run, version.version).status == "published"


def test_cost_is_recorded__of_the_burnt_name_and_of_the_published_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = publisher(tmp_path, monkeypatch, bad=1)
    costs: list[tuple[str, PublishCost]] = []
    fail, settle = made.store.fail_version, made.store.publish_version
    monkeypatch.setattr(made.store, "fail_version", lambda *a: (costs.append(("failed", a[3])), fail(*a)))
    monkeypatch.setattr(made.store, "publish_version", lambda *a: (costs.append(("published", a[3])), settle(*a)))
    made.push = lambda stage, tensors: stage()
    made.publish(lambda: WEIGHTS, parent=None, updates=0)
    (first, burnt), (second, published) = costs
    assert (first, second) == ("failed", "published")
    assert list(burnt.phases) == ["export", "write", "checksum", "push", "stage", "verify"]
    assert list(published.phases) == ["write", "checksum", "push", "stage", "verify"], "exported once"
    assert burnt.bytes == published.bytes == next(tmp_path.rglob("*.safetensors")).stat().st_size
    assert made.seconds == pytest.approx(sum(burnt.phases.values()) + sum(published.phases.values()))


def test_pruning__happens_after_each_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = publisher(tmp_path, monkeypatch, bad=0)
    made.pruning = Pruning(tmp_path, room=0, keep=2)
    parent = None
    for _ in range(4):
        made.folder = tmp_path
        made.start = replace(made.start, branch=made.start.branch + 1)  # names are never used twice
        parent = made.publish(lambda: WEIGHTS, parent=parent, updates=0).version
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == 3, "the first one, and the two newest"
