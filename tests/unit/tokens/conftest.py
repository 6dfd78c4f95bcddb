"""Tokenizer directories with different chat templates over one small byte-level tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer

TEXTS = ["read spec.txt, then add 4 to each; sort descending", "def g(x): x=[a+4 for a in x]; return x"] * 10

MakeTokenizer = Callable[..., Path]


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> MakeTokenizer:
    """(template or None for the built one, more control tokens, ids that end a turn, config entries) to a directory."""

    def make(
        template: str | None = None,
        name: str = "tokenizer",
        controls: Sequence[str] = (),
        ends: Sequence[str] = (),
        **config: object,
    ) -> Path:
        folder = tmp_path / name
        plan = TokenizerPlan(scaffold=('<tool_call>{"name": "', "return x", *controls))
        tokenizer = build_tokenizer(TEXTS, plan, folder)
        if ends:
            listed = {"eos_token_id": [tokenizer.token_to_id(end) for end in ends]}
            (folder / "generation_config.json").write_text(json.dumps(listed))
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text()) | config
        if template is not None:
            settings["chat_template"] = template
        path.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
        return folder

    return make
