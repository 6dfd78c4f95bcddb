"""Histories: appended as sampled, or as the template rewrites them, and each sampled token trains once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from family_templates import CONTROL_TOKENS, DEEPSEEK, FAMILIES, MISTRAL, QWEN3, QWEN3_INLINE, THINKING

from agentrl.errors import UsageError
from agentrl.tokens.chat_format import ChatFormat
from agentrl.tokens.history import History
from agentrl.tokens.messages import Message
from agentrl.tokens.transcript import Transcript
from agentrl.types import FinishReason, Segment

MakeTokenizer = Callable[..., Path]
USER = Message("user", "Implement g(x).")
COUNTED = "{{ messages | length }}" + FAMILIES["qwen"][0]
STRICT = FAMILIES["qwen"][0].replace(
    "{%- if m.role == 'tool' -%}",
    "{%- if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls -%}{{ raise_exception('a call first') }}{%- endif -%}"
    "{%- if m.role == 'tool' -%}",
)


@dataclass
class Sampled:
    token_ids: np.ndarray
    finish_reason: FinishReason = FinishReason.STOP

    @property
    def logprobs(self) -> np.ndarray:
        return np.full(len(self.token_ids), -0.5, dtype=np.float32)

    @property
    def versions(self) -> np.ndarray:
        return np.ones(len(self.token_ids), dtype=np.int32)


@dataclass
class Played:
    segments: tuple[Segment, ...]
    rewrites: int
    requests: list[list[int]]


def play(chat: ChatFormat, turns: Sequence[str], answers: Sequence[Sequence[Message]]) -> Played:
    history, transcript = History(chat, [USER]), Transcript()
    history.open(transcript)
    rewrites, requests = 0, []
    for text, new in zip(turns, [*answers, ()], strict=True):
        requests.append(transcript.token_ids)
        ids = chat.encode_action(text)
        transcript.append_action(Sampled(np.array(ids)))
        history.act(text, ids)
        if new:
            rewrites += history.observe(transcript, new)
    return Played(transcript.segments, rewrites, requests)


def chat_of(make_tokenizer: MakeTokenizer, template: str, *, follow: bool) -> ChatFormat:
    return ChatFormat(make_tokenizer(template, controls=CONTROL_TOKENS), follow=follow)


TURNS = ("<think>\nfirst thought\n</think>\n\nfirst", "<think>\nsecond thought\n</think>\n\nsecond", "third")
TOOL, AGAIN = Message("tool", "ok", name="read"), Message("user", "go on")


@pytest.mark.parametrize("template", [QWEN3, QWEN3_INLINE, DEEPSEEK])
def test_appending__keeps_reasoning_in_one_context(make_tokenizer: MakeTokenizer, template: str) -> None:
    chat = chat_of(make_tokenizer, template, follow=False)
    played = play(chat, TURNS, [[TOOL], [AGAIN]])
    assert {segment.context for segment in played.segments} == {0}
    assert "first thought" in chat.decode(played.requests[2])
    for before, after in zip(played.requests, played.requests[1:], strict=False):
        assert after[: len(before)] == before


@pytest.mark.parametrize("template", [QWEN3, QWEN3_INLINE])
def test_reasoning_stripped_by_the_template__opens_a_context_and_trains_each_token_once(
    make_tokenizer: MakeTokenizer, template: str
) -> None:
    chat = chat_of(make_tokenizer, template, follow=True)
    assert chat.drops_reasoning_after() == ("user",)
    played = play(chat, TURNS, [[TOOL], [AGAIN]])
    assert [segment.context for segment in played.segments] == [0, 0, 1]
    assert played.rewrites == 1
    assert sum(s.n_act for s in played.segments) == sum(len(chat.encode_action(text)) for text in TURNS)
    rewritten = chat.decode(played.requests[2])
    assert "thought" not in rewritten
    assert rewritten == (
        "<|im_start|>user\nImplement g(x).<|im_end|>\n<|im_start|>assistant\nfirst<|im_end|>\n"
        "<|im_start|>user\n<tool_response>ok</tool_response><|im_end|>\n<|im_start|>assistant\nsecond<|im_end|>\n"
        "<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    )
    assert played.segments[2].observation.tolist() == played.requests[2]


def test_rewritten_turn__keeps_the_ids_that_were_sampled(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, QWEN3, follow=True)
    history, transcript = History(chat, [USER]), Transcript()
    history.open(transcript)
    # As a policy may sample it: "read" letter by letter, which the tokenizer would not write so.
    letters = [i for letter in "read" for i in chat.encode_content(letter)]
    assert letters != chat.encode_content("read")
    ids = [*chat.encode_action("<think>\nhm\n</think>\n\n")[:-1], *letters, chat.end_of_turn_id]
    transcript.append_action(Sampled(np.array(ids)))
    history.act(chat.decode_action(ids), ids)
    assert history.observe(transcript, [AGAIN])
    prompt = transcript.token_ids
    assert any(prompt[i : i + len(letters)] == letters for i in range(len(prompt)))


def test_control_text_of_a_policy__stays_text_in_a_rewritten_prompt(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, QWEN3, follow=True)
    start = chat.encode_template("<|im_start|>")[0]
    history, transcript = History(chat, [USER]), Transcript()
    history.open(transcript)
    spelled = chat.encode_content("<|im_start|>system")
    ids = [*chat.encode_action("<think>\nx\n</think>\n\n")[:-1], *spelled, chat.end_of_turn_id]
    transcript.append_action(Sampled(np.array(ids)))
    history.act(chat.decode_action(ids), ids)
    history.observe(transcript, [AGAIN])
    whole = chat.decode(transcript.token_ids)
    assert "<|im_start|>system" in whole
    plain = chat.prompt([USER, Message("assistant", "y"), AGAIN])
    assert transcript.token_ids.count(start) == plain.count(start)


def test_reasoning_that_the_prompt_opened__is_stripped_too(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, THINKING, follow=True)
    assert chat.opens_reasoning
    played = play(chat, ["a thought\n</think>\n\nfirst", "x</think>second"], [[AGAIN]])
    assert played.rewrites == 1
    assert "thought" not in chat.decode(played.requests[1])
    assert "assistant\nfirst<|im_end|>" in chat.decode(played.requests[1])


def test_template_that_strips_always__rewrites_once_for_each_turn_with_reasoning(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, DEEPSEEK, follow=True)
    assert chat.drops_reasoning_after() == ("user", "tool")
    played = play(chat, TURNS, [[TOOL], [TOOL]])
    assert [segment.context for segment in played.segments] == [0, 1, 2]


def test_turns_without_reasoning__only_append_when_the_template_is_followed(make_tokenizer: MakeTokenizer) -> None:
    played = play(chat_of(make_tokenizer, QWEN3, follow=True), ["one", "two", "three"], [[TOOL], [AGAIN]])
    assert played.rewrites == 0


def test_suffix_or_refused__a_rewriting_template_is_followed_on_request(make_tokenizer: MakeTokenizer) -> None:
    with pytest.raises(UsageError, match=r"chat template of .*model\.history=template"):
        chat_of(make_tokenizer, COUNTED, follow=False)
    chat = chat_of(make_tokenizer, COUNTED, follow=True)
    played = play(chat, ["one", "two"], [[TOOL]])
    assert [segment.context for segment in played.segments] == [0, 1]
    assert chat.decode(played.requests[1]).startswith("3<|im_start|>user\nImplement g(x).")


def test_template_that_drops_the_newest_message__refused(make_tokenizer: MakeTokenizer) -> None:
    silent = FAMILIES["qwen"][0].replace("m.content + '\\n</tool_response>", "'\\n</tool_response>")
    for follow in (False, True):
        with pytest.raises(UsageError, match="drops, repeats or reorders"):
            chat_of(make_tokenizer, silent, follow=follow)


def test_template_that_needs_calls_before_results__refused_where_it_is_to_be_followed(make_tokenizer: MakeTokenizer) -> None:
    assert chat_of(make_tokenizer, STRICT, follow=False).neutral_calls
    with pytest.raises(UsageError, match=r"use model\.history=append"):
        chat_of(make_tokenizer, STRICT, follow=True)


def test_mistral_ids__have_nine_characters(make_tokenizer: MakeTokenizer) -> None:
    played = play(chat_of(make_tokenizer, MISTRAL, follow=False), ["one", "two"], [[TOOL, TOOL]])
    assert len(played.segments) == 2
