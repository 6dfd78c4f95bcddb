"""Wrong input gets one paragraph and its exit code before any work (no_silent_option)."""

from __future__ import annotations

import json
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentrl.model.config import ModelConfig
from agentrl.model.tiny import build_tiny_model
from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from tests.command_line import CommandLine


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--env", "code_agnet"], "code_agent"),
        (["--env", "code_agent", "--preset", "sao_trun"], "sao_turn"),
        (["--env", "code_agent", "trainer.stepps=3"], "trainer.steps"),
        (["--env", "code_agent", "--sede", "3"], "--seed"),
        (["--env", "code_agent", "--config", "nothing.toml"], "does not exist"),
        (["--env", "code_agent", "model.tool_format=qwen_coder"], "Did you mean 'qwen3_coder'"),
        (["--env", "code_agent", "model.tool_format=mistral"], "needs a --model"),
        ([], "--env"),
        (["--resume", "nothing"], "no run named 'nothing'"),
        (["--resume", "latest", "--seed", "3"], "leave out --seed"),
        (["--resume", "latest", "--dry-run"], "leave out --dry-run"),
        (["--env", "code_agent", "--sync", "staleness.lag=5"], "given twice"),
        (["--env", "code_agent", "--name", "../evil"], "can't name a run"),
        (["--env", "code_agent", "--name", "latest"], "can't name a run"),
        (["--env", "code_agent", "--name", "x" * 300], "can't name a run"),
        (["--env", "code_agent", "--model", ""], "config.json"),
        (["--env", "code_agent", "environment_options.dat=x.jsonl"], "did you mean 'data'"),
        (["--env", "code_agent", "environment_options.data=x.jsonl"], "x.jsonl does not exist"),
        (["--env", "code_agent", "environment_options=x"], "should be a valid dictionary"),
        (["--env", "code_agent", "trainer.batch=65600"], "trainer.batch (65600) is over the 65536 trajectories"),
        (["--env", "code_agent", "trainer.layout.pipeline=3"], "pipeline (3) does not divide the model's 2 layers"),
    ],
)
def test_usage__exit_2_and_the_nearest_name(arguments: list[str], said: str, command_line: CommandLine) -> None:
    output = command_line.run("train", *arguments, code=2)
    assert said in output
    assert "Traceback" not in output


def test_kernels_that_are_not_there__exit_3_and_the_name(command_line: CommandLine) -> None:
    if find_spec("transformer_engine") is not None:
        pytest.skip("Transformer Engine is installed here")
    output = command_line.run("train", "--env", "code_agent", "trainer.layout.kernels=transformer_engine", code=3)
    assert "transformer_engine is not installed" in output
    assert "or leave the setting out" in output


def test_model_directory_without_weights__is_named(command_line: CommandLine) -> None:
    empty = command_line.base / "empty-model"
    empty.mkdir(exist_ok=True)
    output = command_line.run("train", "--env", "code_agent", "--model", str(empty), code=2)
    assert str(empty) in output


@pytest.fixture(scope="module")
def small_model(command_line: CommandLine) -> Path:
    """A model directory with its tokenizer."""
    folder = command_line.base / "small-model"
    build_tokenizer(["some text"], TokenizerPlan(), folder)
    build_tiny_model(folder, seed=0, d=32, ff=32)
    return folder


def test_tokenizer_of_another_model__both_vocabularies_and_the_remedy(small_model: Path, command_line: CommandLine) -> None:
    other = command_line.base / "other-tokenizer"
    shutil.copytree(small_model, other)
    tokens = ModelConfig.read(other).vocab_size
    longer = build_tokenizer(["some text"], TokenizerPlan(scaffold=("print(",)), other).get_vocab_size()
    output = command_line.run("train", "--env", "code_agent", "--model", str(other), code=2)
    assert f"the tokenizer has {longer} token ids, but the model's vocab_size is {tokens}" in output
    assert "Use the tokenizer that the model came with" in output


def test_architecture_that_is_not_supported__named_with_those_that_are(small_model: Path, command_line: CommandLine) -> None:
    other = command_line.base / "other-architecture"
    shutil.copytree(small_model, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    output = command_line.run("train", "--env", "code_agent", "--model", str(other), code=2)
    assert "architecture 'MambaForCausalLM' is not one of LlamaForCausalLM, Qwen2ForCausalLM" in output


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (None, "has no weights; expected model.safetensors"),
        ({"d": 64, "ff": 32}, "[320, 64], not [320, 32]"),
    ],
)
def test_critic_path_that_does_not_fit__refused_in_the_plan(
    sizes: dict[str, int] | None, said: str, small_model: Path, command_line: CommandLine
) -> None:
    critic = Path(tempfile.mkdtemp(prefix="critic-", dir=command_line.base))
    if sizes is not None:
        build_tokenizer(["some text"], TokenizerPlan(), critic)
        build_tiny_model(critic, seed=0, **sizes)
    output = command_line.run(
        "train", "--env", "code_agent", "--model", str(small_model), f"model.critic_path={critic}", "--dry-run", code=2
    )
    rows = ModelConfig.read(small_model).vocab_size
    assert said.replace("320", str(rows)) in output
    assert str(critic) in output


def test_database_unreachable__exit_3_and_no_password(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://someone:s3cret-word@127.0.0.1:1/nowhere"
    code = "import sys, os; os.environ['AGENTRL_DATABASE_URL'] = sys.argv.pop(1); from agentrl.cli.main import main; main()"
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", code, url, "train", "--env", "code_agent"],
        env=command_line.environment,
        cwd=command_line.base,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "s3cret-word" not in done.stdout + done.stderr
    assert "127.0.0.1" in done.stderr


def test_dry_run__starts_nothing(command_line: CommandLine) -> None:
    output = command_line.run("train", "--env", "code_agent", "--name", "dry", "--dry-run")
    assert "starts no run" in output
    assert not Path(command_line.base / "runs" / "dry").exists()
