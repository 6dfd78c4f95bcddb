"""What the plan says of calls and history, and which models it refuses before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.config.load import resolve
from agentrl.environment.registry import load
from agentrl.errors import UsageError
from agentrl.launch.plan import chat_lines
from agentrl.model.tiny_tokenizer import CHAT_TEMPLATE, TokenizerPlan, build_tokenizer

STRIPPING = CHAT_TEMPLATE.replace("+ message.content }}", "+ message.content.split('</think>')[-1] }}")
COUNTING = "{{ messages | length }}" + CHAT_TEMPLATE


def lines(folder: Path, template: str, *overrides: str) -> dict[str, str]:
    build_tokenizer(["some text"], TokenizerPlan(), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    flags = {"model.path": str(folder)}
    config = resolve(environment="code_agent", preset=None, file=None, flags=flags, overrides=overrides).config
    return dict(chat_lines(config, load("code_agent")))


def test_plan__says_how_calls_are_read_and_that_turns_stay(tmp_path: Path) -> None:
    assert lines(tmp_path, CHAT_TEMPLATE) == {
        "tool calls": "hermes: as the chat template writes them",
        "history": "earlier turns stay as sampled",
    }


def test_plan__format_as_set(tmp_path: Path) -> None:
    assert lines(tmp_path, CHAT_TEMPLATE, "model.tool_format=fenced")["tool calls"] == "fenced: as set"


@pytest.mark.parametrize(("history", "said"), [("append", "here it stays"), ("template", "a new context opens there")])
def test_plan__says_what_becomes_of_stripped_reasoning(tmp_path: Path, history: str, said: str) -> None:
    line = lines(tmp_path, STRIPPING, f"model.history={history}")["history"]
    assert "drops earlier reasoning before a user or tool message" in line
    assert said in line


def test_plan__refuses_a_rewriting_template_unless_it_is_followed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"chat template of {tmp_path}.*model.history=template"):
        lines(tmp_path, COUNTING)
    assert "a new context opens" in lines(tmp_path, COUNTING, "model.history=template")["history"]


def test_plan__says_that_a_template_writes_the_date(tmp_path: Path) -> None:
    dated = "{{ strftime_now('%d %b %Y') }}" + CHAT_TEMPLATE
    assert "today's date" in lines(tmp_path, dated)["history"]


def test_plan__refuses_a_response_template_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ships no response_template"):
        lines(tmp_path, CHAT_TEMPLATE, "model.tool_format=response_template")


def test_plan__built_model_writes_hermes_only() -> None:
    environment = load("code_agent")
    config = resolve(environment="code_agent", preset=None, file=None, flags={}, overrides=["model.tool_format=glm"]).config
    with pytest.raises(UsageError, match="needs a --model"):
        chat_lines(config, environment)
