"""Tokenizer directories with different chat templates over one small byte-level tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer

TEXTS = ["read spec.txt, then add 4 to each; sort descending", "def g(x): x=[a+4 for a in x]; return x"] * 10

MakeTokenizer = Callable[..., Path]


@pytest.fixture
def make_tokenizer(tmp_path: Path) -> MakeTokenizer:
    """(template or None for the built one, config entries) to a directory."""

    def make(template: str | None = None, name: str = "tokenizer", **config: object) -> Path:
        folder = tmp_path / name
        build_tokenizer(TEXTS, TokenizerPlan(scaffold=('<tool_call>{"name": "', "return x")), folder)
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text()) | config
        if template is not None:
            settings["chat_template"] = template
        path.write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
        return folder

    return make
