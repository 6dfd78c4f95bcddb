"""Where a turn's thinking ends and its answer begins. Thinking is sampled like the rest: it stays in the ids and is trained."""

from __future__ import annotations

TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
"""Opening and closing tags of reasoning, as chat templates write them."""


def answer_start(text: str, *, opened: bool = False) -> int:
    """Index of the first character after a leading block of reasoning; 0 without one.

    ``opened``: the prompt ended with the opening tag, so that the turn begins inside. Reasoning that is not closed is all of
    the turn. A closing tag later in the text is text.
    """
    lead = len(text) - len(text.lstrip())
    for opening, closing in TAGS:
        if text.startswith(opening, lead):
            end = text.find(closing, lead)
            return end + len(closing) if end >= 0 else len(text)
    if not opened:
        return 0
    ends = [text.find(closing) + len(closing) for _, closing in TAGS if closing in text]
    return min(ends, default=len(text))


def opens(prompt_end: str) -> bool:
    """Whether a prompt ends inside reasoning."""
    return prompt_end.rstrip().endswith(tuple(opening for opening, _ in TAGS))
