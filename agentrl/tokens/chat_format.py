"""Text to token ids and back for one model directory, through the chat template of its tokenizer.

Invariants, each a test of this name:
- ``content_is_text``: a content never yields a control id, whatever it says, and decodes to what it said.
- ``separator_once``: what the template writes between an end of turn and the next message is appended exactly once.
- ``suffix_or_refused``: new messages only ever append; a template that can't do that is refused at construction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import jinja2
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from agentrl.errors import UsageError
from agentrl.tokens.messages import Message
from agentrl.tokens.template_text import TemplateText, history_shape, prompt_shape
from agentrl.types import Json

_LOSSLESS_PROBE = ("def f(x):\n    return x", "  two  spaces ", "é日本\t\x01", "1234, then 5")


class ChatFormat:
    """Encodes prompts, observations and demonstrated actions; decodes ids.

    ``tokenizer_dir`` holds ``tokenizer.json`` and ``tokenizer_config.json`` with a chat template (or
    ``chat_template.jinja``). Raises `UsageError` when one is missing, when the tokenizer loses text, or when the template
    is not append-only.
    """

    def __init__(self, tokenizer_dir: Path) -> None:
        self._dir = Path(tokenizer_dir)
        tokenizer = _load(self._dir)
        template = tokenizer.chat_template
        if not isinstance(template, str):
            raise UsageError(f"{self._dir}: the tokenizer has no chat template; add chat_template to tokenizer_config.json")
        self._hf = tokenizer
        self._full: Tokenizer = tokenizer.backend_tokenizer
        self._plain = _without_added_tokens(self._full)
        self._control_ids = frozenset(self._full.get_added_tokens_decoder())
        self.tokenizer_hash = hashlib.sha256(self._full.to_str().encode()).hexdigest()
        self.template_hash = hashlib.sha256(template.encode()).hexdigest()
        self._text = TemplateText(self._render, f"chat template of {self._dir}")
        self._template_ids = lru_cache(maxsize=8192)(self._encode_template)
        self._check_contents_stay_text()
        self.end_of_turn_id, self._end_of_turn_text = self._find_end_of_turn()
        self.stop_token_ids = self._find_stop_tokens()
        self._neutral_calls = False
        self._check_append_only()

    def prompt(self, messages: Sequence[Message], tools: Sequence[Json] = ()) -> list[int]:
        """Ids of a whole conversation with the assistant's turn opened. ``tools``: JSON schemas for the template to show."""
        for message in messages:
            self._refuse_control_text_in_calls(message)
        pieces = self._text.cut_prompt(prompt_shape(messages), json.dumps(list(tools)) if tools else "")
        ids = list(self._template_ids(pieces[0]))
        for message, piece in zip(messages, pieces[1:], strict=True):
            ids += self._encode_content(message.content)
            ids += self._template_ids(piece)
        return ids

    def observation(self, history: Sequence[Message], new: Sequence[Message], last_token: int | None) -> list[int]:
        """Ids to append after the sampled ids of ``history[-1]``, an assistant message, for the messages ``new``.

        ``last_token`` is the last id that was sampled (None: nothing was): when it is the end of turn only what follows it
        is added, else the end of turn too. Contents of ``history`` are not read; its ids are in the transcript.
        """
        if not history or history[-1].role != "assistant" or not new:
            raise UsageError("an observation follows an assistant message and has at least one message of its own")
        if any(message.role == "assistant" for message in new):
            raise UsageError("an observation can't hold an assistant message; an assistant's turn is sampled")
        shape = history_shape([*history, *new], neutral_calls=self._neutral_calls)
        pieces = self._text.cut_suffix(shape[: len(history)], shape[len(history) :])
        after = pieces[0].index(self._end_of_turn_text)
        if last_token == self.end_of_turn_id:
            after += len(self._end_of_turn_text)
        ids = list(self._template_ids(pieces[0][after:]))
        for message, piece in zip(new, pieces[1:], strict=True):
            ids += self._encode_content(message.content)
            ids += self._template_ids(piece)
        return ids

    def encode_action(self, text: str) -> list[int]:
        """Ids of a demonstrated assistant turn, the end of turn added. Control tokens written in ``text`` count as such."""
        return self._full.encode(text + self._end_of_turn_text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of any ids, control tokens included; bytes that are not UTF-8 become U+FFFD."""
        return self._full.decode(list(ids), skip_special_tokens=False)

    def decode_action(self, ids: Sequence[int]) -> str:
        """Text of a sampled turn without the stop token that ended it."""
        body = ids[:-1] if len(ids) and int(ids[-1]) in self.stop_token_ids else ids
        return self.decode(body)

    def shows_tools(self) -> bool:
        """Whether the template writes tool schemas into the prompt."""
        shape = prompt_shape([Message("user", "")])
        probe = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {"type": "object"}}}
        return self._text.cut_prompt(shape, json.dumps([probe])) != self._text.cut_prompt(shape, "")

    def _render(self, conversation: list[dict[str, Json]], tools: list[Json] | None, open_turn: bool) -> str:
        try:
            text = self._hf.apply_chat_template(conversation, tools=tools, tokenize=False, add_generation_prompt=open_turn)
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError) as error:
            roles = ", ".join(m["role"] for m in conversation)
            raise UsageError(f"chat template of {self._dir} refuses a conversation of [{roles}]: {error}") from error
        assert isinstance(text, str)
        return text

    def _encode_template(self, text: str) -> tuple[int, ...]:
        return tuple(self._full.encode(text, add_special_tokens=False).ids)

    def _encode_content(self, text: str) -> list[int]:
        return self._plain.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids

    def _check_contents_stay_text(self) -> None:
        words = [token.content for token in self._full.get_added_tokens_decoder().values()]
        for probe in (*words, *_LOSSLESS_PROBE):
            ids = self._encode_content(probe)
            if not self._control_ids.isdisjoint(ids):
                raise UsageError(f"{self._dir}: the tokenizer turns the plain text {probe!r} into a control token")
            if self.decode(ids + ids) != probe + probe:
                raise UsageError(f"{self._dir}: the tokenizer loses text: {probe!r} does not decode to itself")

    def _find_end_of_turn(self) -> tuple[int, str]:
        tail = self._text.end_of_turn()
        controls = self._full.get_added_tokens_decoder()
        for token_id in self._template_ids(tail):
            if token_id in controls:
                return token_id, controls[token_id].content
        raise UsageError(f"chat template of {self._dir} puts no control token after an assistant message, so no turn can end")

    def _find_stop_tokens(self) -> tuple[int, ...]:
        """The end of turn and what ``generation_config.json`` adds."""
        path = self._dir / "generation_config.json"
        listed = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        more = [listed] if isinstance(listed, int) else (listed or [])
        return tuple(dict.fromkeys([self.end_of_turn_id, *more]))

    def _check_append_only(self) -> None:
        """Probe what an episode does; a template that refuses tool results without calls is shown neutral calls."""
        user, assistant, tool = Message("user", ""), Message("assistant", ""), Message("tool", "")
        try:
            self.observation([user, assistant], [tool], self.end_of_turn_id)
        except UsageError:
            self._neutral_calls = True
            self.observation([user, assistant], [tool], self.end_of_turn_id)
        self.observation([user, assistant, tool, assistant], [tool], None)
        self.observation([user, assistant, tool, assistant], [user], self.end_of_turn_id)

    def _refuse_control_text_in_calls(self, message: Message) -> None:
        for call in message.tool_calls:
            written = json.dumps([call.name, call.arguments], ensure_ascii=False)
            if not self._control_ids.isdisjoint(self._full.encode(written, add_special_tokens=False).ids):
                raise UsageError(f"a tool call to {call.name!r} in the prompt holds the text of a control token")


def _load(folder: Path) -> PreTrainedTokenizerFast:
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(f"{folder}: no tokenizer.json there; name a directory in Hugging Face format")
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _without_added_tokens(full: Tokenizer) -> Tokenizer:
    description = json.loads(full.to_str())
    return Tokenizer.from_str(json.dumps({**description, "added_tokens": []}))
