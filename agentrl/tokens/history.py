"""The messages of one episode, and what new ones add to its transcript.

- Appending (the default): a turn stays in the prompt exactly as it was sampled, its reasoning included.
- Following the template: the prompt of each turn is what the template makes of the whole conversation. Where that drops or
  changes something that the prompt held before, a new context opens with the rewritten prompt. Everything in it is observation,
  so each sampled token is trained once: in the context in which it was sampled.
- Compacting, either way: the environment gives the messages that the policy reads from now on, and they open a new context.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from agentrl.tokens.chat_format import ChatFormat
from agentrl.tokens.messages import Message, message_json
from agentrl.tokens.reasoning import TAGS, answer_start
from agentrl.tokens.template_text import NotASuffix, Shape, history_shape, prompt_shape
from agentrl.tokens.transcript import Transcript
from agentrl.types import Json


class History:
    """``messages``: the conversation so far."""

    def __init__(self, chat: ChatFormat, messages: Sequence[Message], tools: Sequence[Json] = ()) -> None:
        self.messages = list(messages)
        self._chat = chat
        self._tools = tools
        self._n_given = len(self.messages)
        self._sampled: dict[int, list[int]] = {}
        self._reasoned: frozenset[int] = frozenset()
        self._in_prompt: frozenset[int] = frozenset()

    def open(self, transcript: Transcript) -> None:
        """Append the prompt of the first turn."""
        transcript.append_observation(self._chat.prompt(self.messages, self._tools))

    def act(self, text: str, token_ids: Sequence[int]) -> None:
        """Note a sampled turn that the transcript already holds: its text and ids, the stop token included."""
        index = len(self.messages)
        self.messages.append(Message("assistant", text))
        self._sampled[index] = list(token_ids)
        if self._chat.follows and self._reasoning_end(text):
            self._reasoned |= {index}
            self._in_prompt |= {index}

    def observe(self, transcript: Transcript, new: Sequence[Message]) -> bool:
        """Append the messages that answer the turn; True when that took a new context, since the template rewrote the rest."""
        ids, rewrites = self.next_ids(new)
        if rewrites:
            transcript.start_context()
            self._in_prompt = self._shown(new)
        transcript.append_observation(ids)
        self.messages.extend(new)
        return rewrites

    def compact(self, transcript: Transcript, messages: Sequence[Message]) -> None:
        """Go on from ``messages`` instead of the conversation so far: the prompt of a new context."""
        ids = self._chat.prompt(messages, self._tools)
        transcript.start_context(tuple(message_json(message) for message in messages))
        transcript.append_observation(ids)
        self.messages, self._n_given = list(messages), len(messages)
        self._sampled = {}
        self._reasoned = self._in_prompt = frozenset()

    def next_ids(self, new: Sequence[Message]) -> tuple[list[int], bool]:
        """Ids that ``new`` would add, and whether they are a whole prompt, to be put into a new context."""
        if not self._chat.follows:
            return self._appended(new), False
        try:
            if self._in_prompt <= self._shown(new):
                return self._appended(new), False
        except NotASuffix:
            pass
        return self._rewritten(new), True

    def closing_ids(self, new: Sequence[Message]) -> list[int]:
        """The last of those ids: what the template writes after the content of ``new[-1]``."""
        pieces = self._chat.text.cut_whole(self._shape(new), self._reasoned, self._tools_json())
        return self._chat.encode_template(pieces.texts[-1])

    def _appended(self, new: Sequence[Message]) -> list[int]:
        sampled = self._sampled[len(self.messages) - 1]
        return self._chat.observation(self.messages, new, sampled[-1] if sampled else None)

    def _shown(self, new: Sequence[Message]) -> frozenset[int]:
        """Turns whose reasoning the template shows once ``new`` are there."""
        pieces = self._chat.text.cut_whole(self._shape(new), self._reasoned, self._tools_json())
        return frozenset(index for kind, index in pieces.keys if kind == "r")

    def _rewritten(self, new: Sequence[Message]) -> list[int]:
        messages = [*self.messages, *new]
        pieces = self._chat.text.cut_whole_with(self._shape(new), len(new), self._reasoned, self._tools_json())

        def content(kind: str, index: int) -> list[int]:
            text = messages[index].content
            if index not in self._sampled:
                return self._chat.encode_content(text)
            end = self._reasoning_end(text) if index in self._reasoned else 0
            if kind == "r":
                return self._chat.encode_content(_thought(text[:end]))
            return self._tail(self._sampled[index], text[end:].lstrip() if end else text)

        return self._chat.fill(pieces, content)

    def _tail(self, sampled: list[int], text: str) -> list[int]:
        """The sampled ids that stand for ``text``, the end of their turn; ids of plain text where no cut between them fits."""
        if sampled and sampled[-1] in self._chat.stop_token_ids:
            sampled = sampled[:-1]
        low, high = 0, len(sampled)
        while low < high:
            middle = (low + high) // 2
            if len(self._chat.decode(sampled[middle:])) > len(text):
                low = middle + 1
            else:
                high = middle
        return sampled[low:] if self._chat.decode(sampled[low:]) == text else self._chat.encode_content(text)

    def _reasoning_end(self, text: str) -> int:
        return answer_start(text, opened=self._chat.opens_reasoning)

    def _shape(self, new: Sequence[Message]) -> Shape:
        given, later = self.messages[: self._n_given], [*self.messages[self._n_given :], *new]
        return prompt_shape(given) + history_shape(later, neutral_calls=self._chat.neutral_calls)

    def _tools_json(self) -> str:
        return json.dumps(list(self._tools)) if self._tools else ""


def _thought(text: str) -> str:
    for opening, closing in TAGS:
        text = text.strip().removeprefix(opening).removesuffix(closing)
    return text.strip()
