"""Model and tool text is data: it is shown, it never acts on the terminal."""

from __future__ import annotations

import pytest

from agentrl.cli.trajectory_text import visible


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\x00b", "\u202egnp.exe", "\r\x08", "\ud800", "\u200b"])
def test_visible_control__is_escaped(text: str) -> None:
    shown = visible(text)
    assert "\\" in shown
    shown.encode()
    assert not set(shown) & set("\x1b\x00\u202e\r\x08\u200b")


def test_visible_plain_text__is_unchanged() -> None:
    assert visible("def f(x): return x  # 日本 ±") == "def f(x): return x  # 日本 ±"
