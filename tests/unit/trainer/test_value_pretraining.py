"""A critic learns from stored trajectories what a state is worth, is judged on tasks it has not seen, and is loaded again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
import torch
from trainer_samples import reference_model, segment, stored, trained, weights_of

from agentrl.config.algorithm import AlgorithmConfig, CriticConfig
from agentrl.config.run import ModelSettings, RunConfig
from agentrl.errors import UsageError
from agentrl.model.config import ModelConfig
from agentrl.model.model_dir import ModelDir
from agentrl.model.weight_files import write_weights
from agentrl.trainer.batch import Batch
from agentrl.trainer.channel import Channel
from agentrl.trainer.megatron.build import join_world
from agentrl.trainer.megatron.model import TrainedModel
from agentrl.trainer.models import build_critic
from agentrl.trainer.pretrain_main import Pretraining, pretrain_critic
from agentrl.trainer.value_pretraining import (
    Graded,
    Progress,
    ValuePretraining,
    held_out,
    settings_for_returns,
)
from agentrl.types import Outcome, StoredTrajectory, Termination

SETTINGS = AlgorithmConfig(critic=CriticConfig(learning_rate=1e-2, freeze_attention=False, gae_lambda=0.5, updates_per_batch=3))


def trajectory(number: int) -> StoredTrajectory:
    """Solved exactly when its first token is a 1: the critic can see from the start what will come of it."""
    solved = number % 2
    first = segment(0, 4, 3, observation=np.array([solved, 7, 8, 9], np.int32))
    return stored(number, [first, segment(1, 2, 2)], reward=float(solved))


STORED = {t.id: t for t in map(trajectory, range(120))}
KEYS = [Graded(identity, 0, f"train/{number // 2}") for number, identity in enumerate(STORED)]


def read(keys: Sequence[Graded]) -> list[StoredTrajectory]:
    return [STORED[key.id] for key in keys]


def pretraining(critic: TrainedModel) -> ValuePretraining:
    join_world()
    return ValuePretraining(critic, settings_for_returns(SETTINGS), Channel())


def test_pretraining__explains_returns_of_tasks_it_has_not_seen() -> None:
    told: list[Progress] = []
    work = pretraining(trained(reference_model(), "critic"))
    fit = work.run(KEYS, read, epochs=4, batch_size=16, seed=0, on_progress=told.append)
    assert fit.before == pytest.approx(0, abs=1e-6)  # a head of zeros explains nothing
    assert fit.after is not None
    assert fit.after > 0.8
    assert told[-1].update == told[-1].updates == len(told)
    assert told[-1].value_loss < told[0].value_loss / 4
    assert (fit.trained + fit.held_out, fit.refused) == (len(KEYS), 0)


def test_held_out__no_trajectory_of_a_held_out_task_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    own, apart = held_out(KEYS)
    assert sorted([*own, *apart]) == sorted(KEYS)
    assert {key.task for key in own}.isdisjoint(key.task for key in apart)
    fitted: set[UUID] = set()
    fit = ValuePretraining._fit

    def spying(self: ValuePretraining, batch: Batch) -> Mapping[str, float]:
        fitted.update(t.id for t in batch.trajectories)
        return fit(self, batch)

    monkeypatch.setattr(ValuePretraining, "_fit", spying)
    done = pretraining(trained(reference_model(), "critic")).run(KEYS, read, epochs=1, batch_size=16, seed=0)
    assert fitted == {key.id for key in own}
    assert done.held_out == len(apart) > 0
    assert held_out(apart) == (apart, [])  # where every task would be held out, none is


def test_broken_trajectories__counted_and_left_out() -> None:
    broken = stored(500, [segment(0, 4, 0)])
    cut_off = stored(501, reward=None, outcome=Outcome.POLICY_ENDED, termination=Termination.TRUNCATED_TOKENS)
    known = {**STORED, broken.id: broken, cut_off.id: cut_off}
    keys = [*KEYS[:8], Graded(broken.id, 0, "train/0"), Graded(cut_off.id, 0, "train/1")]
    work = pretraining(trained(reference_model(), "critic"))
    fit = work.run(keys, lambda wanted: [known[key.id] for key in wanted], epochs=1, batch_size=4, seed=0)
    assert fit.refused == 1
    alone = work.run(keys[-1:], lambda wanted: [known[key.id] for key in wanted], epochs=1, batch_size=4, seed=0)
    assert alone.before is None  # cut off without a verdict: it has no return


def test_settings__targets_are_plain_returns() -> None:
    plain = settings_for_returns(SETTINGS)
    assert plain.critic is not None
    assert (plain.critic.gae_lambda, plain.critic.updates_per_batch, plain.truncation) == (1.0, 1, "mask")
    assert plain.critic.learning_rate == 1e-2
    assert settings_for_returns(SETTINGS.model_copy(update={"truncation": "zero"})).truncation == "zero"


def model_dir(folder: Path) -> Path:
    """As much of a model directory as the critic needs, without a tokenizer."""
    reference = reference_model()
    raw = {**reference.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    folder.mkdir()
    (folder / "config.json").write_text(reference.config.to_json_string())
    write_weights(weights_of(reference).items(), folder)
    ModelConfig.from_raw(raw, "test")
    return folder


def asked(folder: Path) -> Pretraining:
    config = RunConfig(environment="e", algorithm=SETTINGS)
    return Pretraining(config, model_dir(folder / "model"), 1, 16, folder / "critic", {"run": "r"})


def test_written_folder__a_run_starts_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = asked(tmp_path)
    raw = {**reference_model().config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    opened = ModelDir(given.model_dir, ModelConfig.from_raw(raw, "test"), (given.model_dir / "model.safetensors",))
    monkeypatch.setattr("agentrl.trainer.pretrain_main.open_model_dir", lambda path: opened)
    pretrain_critic(given, KEYS, read)
    again = build_critic(
        RunConfig(environment="e", algorithm=SETTINGS, model=ModelSettings(critic_path=str(given.target))), opened
    )
    explained = ValuePretraining(again, settings_for_returns(SETTINGS), Channel())._explained(KEYS, read, 16, set())
    assert explained is not None
    assert explained > 0.3
    assert not torch.equal(dict(again.export())["value_head.weight"], torch.zeros(1, 32))


@pytest.mark.parametrize("fault", ["used", "empty"])
def test_nothing_to_write_or_to_learn_from__refused_before_work(tmp_path: Path, fault: str) -> None:
    given = asked(tmp_path)
    if fault == "used":
        given.target.mkdir()
        (given.target / "mine").touch()
    with pytest.raises(UsageError, match="exists already" if fault == "used" else "nothing that a critic could learn from"):
        pretrain_critic(given, KEYS if fault == "used" else [], read)
    assert not (given.target / "model.safetensors").exists()
