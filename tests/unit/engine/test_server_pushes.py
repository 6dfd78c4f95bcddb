"""Pushes from the trainer into servers: rows, repeated attempts, and which tensors are sent."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from agentrl.engine.sglang.naming import WeightNames
from agentrl.engine.sglang.server import Server
from agentrl.engine.sglang.sums import expected_sums
from agentrl.model.config import ModelConfig
from agentrl.model.tiny import initial_tensors
from agentrl.store.loads import EngineLoad
from agentrl.trainer import push
from agentrl.trainer.push import ServerPush
from agentrl.types import PolicyVersion
from tests.fake_sglang import FakeSGLang
from tests.sglang_server import contract_model

PHASES = ["compare", "pause", "transfer", "verify", "resume"]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return contract_model(tmp_path_factory.mktemp("model"))


class Case:
    """Servers "a" and "b", weights of which some parts change from version to version."""

    def __init__(self, folder: Path, model_dir: Path) -> None:
        self.config = ModelConfig.read(model_dir)
        self.servers = {f"http://{name}": FakeSGLang(model_dir) for name in "ab"}
        self.tensors = dict(initial_tensors(self.config, seed=1))
        self.said: list[str] = []
        self.loads: list[EngineLoad] = []
        self.push = ServerPush(
            list(self.servers), self.config, "r", folder, "tensor", "gloo", 1, self.said.append, self.loads.append,
            lambda url: Server(url, self.servers[url]),
        )  # fmt: skip

    def __call__(self, number: int, changed: Sequence[str] = ()) -> list[EngineLoad]:
        """Push version ``number``, in which the tensors ``changed`` are others; the loads that were recorded."""
        self.tensors |= {name: self.tensors[name] + 0.5 for name in changed}
        before = len(self.loads)
        version = PolicyVersion(number, None, number, "", f"sha256:{number:012}", "staged")
        assert self.push(lambda: version, list(self.tensors.items())) == version
        return self.loads[before:]

    def sent(self, name: str) -> list[str]:
        return self.servers[f"http://{name}"].sent[-1]

    def holds(self, name: str, number: int) -> bool:
        """Its name and its weights are those of the newest push."""
        server = self.servers[f"http://{name}"]
        version = PolicyVersion(number, None, number, "", f"sha256:{number:012}", "staged")
        right = server.sums == expected_sums(self.config, self.tensors, torch.float32)
        return right and server.name == WeightNames("r").name(version) and not server.paused


@pytest.fixture
def case(tmp_path: Path, model_dir: Path) -> Case:
    return Case(tmp_path, model_dir)


def refused(reply: Any) -> httpx2.Response:
    return httpx2.Response(400, json={"success": False, "message": "out of memory"})


NORMS = ["model.norm.weight"]


def test_every_push_is_a_row__seconds_by_phase_bytes_and_outcome(case: Case) -> None:
    loads = case(1)
    assert [load.engine for load in loads] == ["http://a", "http://b"]
    for load in loads:
        assert (load.version, load.transport, load.error) == (1, "tensor", None)
        assert list(load.phases) == PHASES
        assert load.bytes == sum(tensor.nbytes for tensor in case.tensors.values())


def test_refused_push__is_repeated_at_that_server_only(case: Case) -> None:
    case(1)
    case.servers["http://a"].faults["/update_weights_from_tensor"] = [refused]
    loads = case(2, NORMS)
    outcomes = [(load.engine, load.error is None) for load in loads]
    assert outcomes == [("http://a", False), ("http://b", True), ("http://a", True)]
    assert case.holds("a", 2)
    assert case.holds("b", 2)
    assert case.said == []


def test_push_is_a_shortcut__a_dead_server_keeps_no_other_from_its_weights(case: Case) -> None:
    case(1)
    case.servers["http://a"].die()
    loads = case(2, NORMS)
    assert [(load.engine, load.error is None) for load in loads] == [("http://a", False), ("http://b", True)]
    assert case.holds("b", 2)
    (line,) = case.said
    assert "push of version 2 failed, workers load its file: http://a" in line
    case.servers["http://a"].start()
    case(3)
    assert case.holds("a", 3)
    assert case.holds("b", 3)


def test_push_is_a_shortcut__a_server_replaced_by_an_old_one_gets_none(case: Case) -> None:
    case(1)
    old = httpx2.Response(
        200, json={"version": "0.4.0", "dtype": "float32", "device": "cpu", "tp_size": 1, "max_req_input_len": 9}
    )
    case.servers["http://a"].faults["/server_info"] = [lambda reply: old] * 2
    loads = case(2, NORMS)
    assert [(load.engine, load.error is None) for load in loads] == [("http://a", False), ("http://b", True)]
    assert case.holds("b", 2)
    (line,) = case.said
    assert "push of version 2 failed, workers load its file: http://a runs SGLang 0.4.0" in line


@pytest.mark.parametrize("lost", ["own_address", "free_port"])
def test_push_is_a_shortcut__without_a_route_to_the_servers(case: Case, lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(push, "own_address", lambda *_: "127.0.0.1")
    monkeypatch.setattr(push, lost, unreachable)
    case.push.transport = "distributed"
    loads = case(1)
    assert {load.engine for load in loads if load.error} == set(case.servers)
    assert len(case.said) == 2
    assert all("Network is unreachable" in line for line in case.said)


def test_only_on_its_base__what_is_bit_identical_is_not_sent_again(case: Case) -> None:
    names = list(case.tensors)
    case(1)
    case(2, NORMS)
    assert case.sent("a") == names, "only now it is known that comparing is worth it"
    (first, _) = case(3, NORMS)
    assert case.sent("a") == case.sent("b") == NORMS
    assert first.bytes == case.tensors[NORMS[0]].nbytes
    assert case.holds("a", 3)
    assert case.holds("b", 3)


def test_only_on_its_base__a_restarted_and_a_changed_server_get_all(case: Case) -> None:
    names = list(case.tensors)
    for number in (1, 2, 3):
        case(number, NORMS)
    case.servers["http://a"].start()
    changed = case.servers["http://b"]
    changed.tensors[NORMS[0]] = changed.tensors[NORMS[0]] + 1  # by someone else, who left the name
    changed.sums = expected_sums(case.config, changed.tensors, torch.float32)
    case(4, NORMS)
    assert case.sent("a") == case.sent("b") == names
    assert case.holds("a", 4)
    assert case.holds("b", 4)


def test_failure_forgets__after_a_failed_push_all_are_sent(case: Case) -> None:
    for number in (1, 2, 3):
        case(number, NORMS)
    case.servers["http://a"].faults["/update_weights_from_tensor"] = [refused, refused]
    case(4, NORMS)
    assert len(case.said) == 1
    case(5, NORMS)
    assert case.sent("a") == list(case.tensors)
    assert case.sent("b") == NORMS
    assert case.holds("a", 5)


def test_nothing_changed__one_tensor_carries_the_name(case: Case) -> None:
    for number in (1, 2):
        case(number, NORMS)
    case(3)
    assert len(case.sent("a")) == 1
    assert case.holds("a", 3)


def test_every_tensor_trained__comparing_is_given_up(case: Case) -> None:
    names = list(case.tensors)
    for number in (1, 2, 3):
        case(number, names)
    case(4, NORMS)
    case(5, NORMS)
    assert case.sent("a") == names
    assert case.holds("a", 5)


def test_refresh_interval__versions_between_are_not_pushed(case: Case) -> None:
    case.push.every = 2
    case(1)
    assert case(2) == []
    assert len(case(3)) == 2
