"""The default run, shortened: it learns, it is asynchronous, and the store answers for it."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest

from agentrl.cli.session import database_session
from agentrl.model.tiny import build_tiny_model
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from benchmarks.learning.outcome import read_outcome
from tests.command_line import CommandLine


def query(command_line: CommandLine, *arguments: str) -> list[dict]:
    return [
        json.loads(line) for line in command_line.run("db", "query", *arguments, "--json").splitlines() if line != "no rows"
    ]


def lag_histogram(command_line: CommandLine, run: str) -> dict[int, int]:
    """Trained trajectories by the lag of their oldest token."""
    rows = query(command_line, "staleness", "--run", run)
    return {row["lag"]: row["trajectories"] for row in rows if row["step"] is None}


def scores(output: str) -> list[float]:
    return [float(score) for score in re.findall(r"held-out success +([0-9.]+).*?-> +([0-9.]+)", output)[0]]


def test_run__learns_from_rl(learned: str) -> None:
    before, after = scores(learned)
    assert before <= 0.5
    assert after >= before + 0.1


def test_run__is_asynchronous_within_the_bound(learned: str, command_line: CommandLine) -> None:
    lags = lag_histogram(command_line, "learned")
    assert max(lags) <= 1
    assert lags.get(1, 0) > 0


def test_run__conserves_every_trajectory(learned: str, command_line: CommandLine) -> None:
    assert "conservation OK" in learned
    (row,) = query(command_line, "conservation", "--run", "learned")
    assert row["consumed"] == 25 * 64
    assert row["evaluated"] == 2 * 256


def test_plan__says_what_was_chosen_and_why(learned: str) -> None:
    for subject in ("store", "sandbox", "engine", "model", "algorithm", "staleness", "overlay tiny"):
        assert subject in learned


def test_saved_queries__answer(learned: str, command_line: CommandLine) -> None:
    listed = command_line.run("db", "queries")
    names = re.findall(r"^│ (\w+) ", listed, re.M)
    assert {"conservation", "staleness", "reward_by_task", "stuck", "dropped_by_reason", "timeline"} <= set(names)
    (newest,) = query(command_line, "latest_trajectory", "--run", "learned")
    for name in ("conservation", "staleness", "reward_by_task", "stuck", "dropped_by_reason"):
        command_line.run("db", "query", name, "--run", "learned")
    command_line.run("db", "query", "timeline", newest["trajectory"])


def test_show__prints_turns_calls_and_events(learned: str, command_line: CommandLine) -> None:
    shown = command_line.run("show", "latest", "--run", "learned", "--tokens")
    for part in ("Implement ", "[0] action", "log-prob", "reward", "events"):
        assert part in shown


def test_learning_benchmark__reads_the_run_from_the_store(
    learned: str, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", command_line.environment["AGENTRL_HOME"])
    monkeypatch.delenv("AGENTRL_DATABASE_URL", raising=False)
    with database_session() as url:
        outcome = read_outcome(url, "learned")
    assert [outcome["held_out_before"], outcome["held_out_after"]] == pytest.approx(scores(learned), abs=5e-4)
    assert (outcome["steps"], outcome["trajectories"], outcome["lag_max"]) == (25, 25 * 64, 1)
    assert outcome["curves"]["reward"][-1] > outcome["curves"]["reward"][0]
    assert all(outcome["curves"].values())


def test_logs__carry_the_gauges(learned: str, command_line: CommandLine) -> None:
    for role in ("trainer", "rollout-0", "evaluation"):
        lines = (command_line.base / "runs" / "learned" / "logs" / f"{role}.jsonl").read_text().splitlines()
        assert lines
        for line in map(json.loads, lines):
            assert {"step", "policy_version", "queue_length", "hit_rate"} <= set(line)


def test_metrics__are_in_the_step_rows(learned: str, command_line: CommandLine) -> None:
    rows = query(command_line, "steps", "--run", "learned")
    assert len(rows) == 25
    trainer = (command_line.base / "runs" / "learned" / "logs" / "trainer.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, trainer) if line["event"] == "step"]
    for name in ("reward_share", "sync_share", "lag_mean", "tokens_per_s", "hit_rate"):
        assert all(name in line for line in steps)


def test_resume_with_another_model__refused_before_any_process_with_both_sizes(learned: str, command_line: CommandLine) -> None:
    model = command_line.base / "runs" / "learned" / "model"
    kept = model.rename(model.with_name("kept"))
    try:
        build_tokenizer(["some text"], TokenizerPlan(), model)
        build_tiny_model(model, seed=0, d=64)
        output = command_line.run("train", "--resume", "learned", code=2)
    finally:
        shutil.rmtree(model)
        kept.rename(model)
    assert "hidden_size is 96 in the checkpoint, 64 in the model" in output
    assert "Resume with the model that the run was started with" in output


def test_export__a_model_folder_that_train_takes(learned: str, command_line: CommandLine) -> None:
    assert "keep  agentrl export learned FOLDER" in learned
    said = command_line.run("export", "learned", "mine", "--max-shard-gb", "0.0002", "--dtype", "bfloat16")
    assert re.search(r"wrote version \d+ of run learned \(\d+ policy updates\) to mine: bfloat16, .* files with an index", said)
    plan = command_line.run("train", "--env", "code_agent", "--model", "mine", "--dry-run")
    assert "mine, no warm start" in plan
    assert "no version 999" in command_line.run("export", "learned", "more", "--version", "999", code=2)


def test_critic_pretrain__explains_held_out_returns_and_starts_a_run(learned: str, command_line: CommandLine) -> None:
    said = command_line.run(
        "critic", "pretrain", "learned", "critic", "--limit", "1000", "--epochs", "3", "--learning-rate", "0.001"
    )
    explained = re.search(r"explained variance of the held-out returns: (\S+) -> (\S+)", said)
    assert explained
    assert float(explained[2]) > max(0.1, float(explained[1]))
    run = command_line.run(
        "train", "--env", "code_agent", "--name", "from-critic", "--model", "runs/learned/model", "model.critic_path=critic",
        "algorithm.critic.warmup_batches=0", "trainer.steps=1", "trainer.batch=32",
        "evaluation.episodes=4", "evaluation.every=0",
    )  # fmt: skip
    assert "conservation OK" in run
    logged = (command_line.base / "runs" / "from-critic" / "logs" / "trainer.jsonl").read_text().splitlines()
    (step,) = [line for line in map(json.loads, logged) if line["event"] == "step"]
    assert step["explained_variance"] > 0
    assert "exists already" in command_line.run("critic", "pretrain", "learned", "critic", code=2)


@pytest.mark.parametrize("preset", ["sao", "grpo"])
def test_preset__runs_on_the_default_task(preset: str, learned: str, command_line: CommandLine) -> None:
    output = command_line.run(
        "train", "--env", "code_agent", "--preset", preset, "--name", preset, "--seed", "11",
        "trainer.steps=5", "trainer.batch=32", "evaluation.episodes=16", "evaluation.every=0",
    )  # fmt: skip
    assert "from the cache" in output
    assert "conservation OK" in output


def test_sync__trains_only_tokens_of_its_own_version(learned: str, command_line: CommandLine) -> None:
    command_line.run(
        "train", "--env", "code_agent", "--sync", "--name", "sync", "--seed", "11",
        "trainer.steps=3", "algorithm.critic.warmup_batches=1", "evaluation.episodes=16", "evaluation.every=0",
        "trainer.max_shard_gb=0.0002",
    )  # fmt: skip
    assert lag_histogram(command_line, "sync") == {0: 3 * 64}
    versions = [set(path.iterdir()) for path in (command_line.base / "runs" / "sync" / "weights").iterdir()]
    assert all(len(files) > 2 and any(f.name == "model.safetensors.index.json" for f in files) for files in versions)


@pytest.mark.docker
def test_docker__runs_the_same_episodes(learned: str, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    url = os.environ.get("AGENTRL_TEST_DOCKER")
    if url is None:
        pytest.skip("no private Docker daemon: run scripts/test.sh")
    monkeypatch.setenv("DOCKER_HOST", url)
    output = command_line.run(
        "train", "--env", "code_agent", "--sandbox", "docker", "--name", "docker", "--seed", "11",
        "trainer.steps=2", "evaluation.episodes=32", "evaluation.every=0", "sandbox.pool_size=4",
    )  # fmt: skip
    assert "docker" in re.search(r"sandbox +(.*)", output)[1]
    assert "conservation OK" in output
    shown = command_line.run("show", "latest", "--run", "docker")
    assert "sandbox docker:sha256:" in shown
