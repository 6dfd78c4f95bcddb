"""Text to token ids and back for one model directory, through the chat template of its tokenizer.

Invariants, each a test of this name:
- ``content_is_text``: a content never yields a control id, whatever it says, and decodes to what it said.
- ``separator_once``: what the template writes between an end of turn and the next message is appended exactly once.
- ``suffix_or_refused``: new messages only ever append; a template that can't do that is refused at construction, unless the
  format is told to follow it (see `agentrl.tokens.history`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

import jinja2
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from agentrl.errors import UsageError, WrongAnswer
from agentrl.tokens.messages import Message, Role
from agentrl.tokens.reasoning import opens
from agentrl.tokens.template_text import NotASuffix, Pieces, TemplateText, history_shape, prompt_shape
from agentrl.tokens.tool_calls import READERS, ParsedTurn, Reader, Schemas, detect, parse, response_template_reader
from agentrl.types import Json, ToolFormat

_LOSSLESS_PROBE = ("def f(x):\n    return x", "  two  spaces ", "é日本\t\x01", "1234, then 5")


class ChatFormat:
    """Encodes prompts, observations and demonstrated actions; decodes ids; reads tool calls.

    ``tokenizer_dir`` holds ``tokenizer.json`` and ``tokenizer_config.json`` with a chat template (or
    ``chat_template.jinja``). ``tool_format``: None finds out which one the template writes. ``follow``: where the template
    rewrites earlier turns, so do the prompts. Raises `UsageError` when a file is missing, when the tokenizer loses text, or
    when the template is not append-only and is not to be followed.
    """

    def __init__(self, tokenizer_dir: Path, *, tool_format: ToolFormat | None = None, follow: bool = False) -> None:
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
        self.writes_the_date = "strftime_now" in template
        self._template_ids = lru_cache(maxsize=8192)(self._ids_of_template)
        self._check_contents_stay_text()
        self.tool_format, self.tool_format_reason = self._choose_tool_format(tool_format)
        self._reader = self._make_reader()
        self.text = TemplateText(
            self._render,
            f"chat template of {self._dir}",
            text_arguments=self._takes_text_arguments(),
            named_ids=self.tool_format is ToolFormat.KIMI,
            reasoning_field="reasoning_content" in template,
        )
        self._end_of_turn_text, self.stop_token_ids = self._find_ends()
        self.end_of_turn_id = self.stop_token_ids[0]
        asked = self.text.cut_prompt(prompt_shape([Message("user", "")]), "")
        self.opens_reasoning = opens(asked.texts[-1])
        self._turn_ids = self._controls_in("".join(asked.texts)) | set(self.stop_token_ids)
        self.neutral_calls = False
        self.follows = follow
        self._check_append_only()

    def prompt(self, messages: Sequence[Message], tools: Sequence[Json] = ()) -> list[int]:
        """Ids of a whole conversation with the assistant's turn opened. ``tools``: JSON schemas for the template to show."""
        for message in messages:
            self._refuse_control_text_in_calls(message)
        self._refuse_turns_in_tools(tools)
        pieces = self.text.cut_prompt(prompt_shape(messages), json.dumps(list(tools)) if tools else "")
        return self.fill(pieces, lambda kind, index: self.encode_content(messages[index].content))

    def fill(self, pieces: Pieces, content: Callable[[str, int], list[int]]) -> list[int]:
        """Ids of template text with ``content(kind, message index)`` in the place of each marker."""
        ids = list(self._template_ids(pieces.texts[0]))
        for (kind, index), text in zip(pieces.keys, pieces.texts[1:], strict=True):
            ids += content(kind, index)
            ids += self._template_ids(text)
        return ids

    def observation(self, history: Sequence[Message], new: Sequence[Message], last_token: int | None) -> list[int]:
        """Ids to append after the sampled ids of ``history[-1]``, an assistant message, for the messages ``new``.

        ``last_token`` is the last id that was sampled (None: nothing was): when it ended the turn only what follows the end of
        turn is added, else the end of turn too. Contents of ``history`` are not read; its ids are in the transcript.
        """
        if not history or history[-1].role != "assistant" or not new:
            raise UsageError("an observation follows an assistant message and has at least one message of its own")
        if any(message.role == "assistant" for message in new):
            raise UsageError("an observation can't hold an assistant message; an assistant's turn is sampled")
        shape = history_shape([*history, *new], neutral_calls=self.neutral_calls)
        pieces = self.text.cut_suffix(shape[: len(history)], shape[len(history) :])
        after = pieces[0].find(self._end_of_turn_text)
        if after < 0:
            raise NotASuffix(
                f"chat template of {self._dir} ends a turn otherwise when a message follows; no transcript can use it"
            )
        closed = last_token in self.stop_token_ids
        if closed:
            after += len(self._end_of_turn_text)
        ids = list(self._template_ids(pieces[0][after:]))
        if closed and not self._end_of_turn_text and ids[:1] == [last_token]:
            ids = ids[1:]  # such a turn ends with the token that opens the next message
        for message, piece in zip(new, pieces[1:], strict=True):
            ids += self.encode_content(message.content)
            ids += self._template_ids(piece)
        return ids

    def encode_action(self, text: str) -> list[int]:
        """Ids of a demonstrated assistant turn, the end of turn added. Control tokens written in ``text`` count as such."""
        return [*self._full.encode(text, add_special_tokens=False).ids, self.end_of_turn_id]

    def encode_content(self, text: str) -> list[int]:
        """Ids of plain text: whatever it says, no control id is among them."""
        return self._plain.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids

    def encode_template(self, text: str) -> list[int]:
        """Ids of text that the template wrote, its control tokens included."""
        return list(self._template_ids(text))

    def parse(self, text: str, schemas: Schemas | None = None) -> ParsedTurn:
        """Reasoning, content and tool calls of a turn's text; ``schemas``: of the tools' arguments, by name."""
        return parse(text, schemas, reader=self._reader, reasons=self.opens_reasoning)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of any ids, control tokens included; bytes that are not UTF-8 become U+FFFD."""
        return self._full.decode(list(ids), skip_special_tokens=False)

    def check_text(self, ids: Sequence[int], text: str) -> None:
        """`WrongAnswer` unless the ids decode to the text that their engine gave: one that loses ids would train on others.

        Space and U+FFFD do not count: engines decode piece by piece and clean spaces up, which changes these alone.
        """
        mine, given = _visible(self.decode(ids)), _visible(text)
        if given not in (mine, _visible(self.decode_action(ids))):
            at = next((i for i, (a, b) in enumerate(zip(mine, given, strict=False)) if a != b), min(len(mine), len(given)))
            raise WrongAnswer(
                f"the engine's ids decode to {mine[at : at + 40]!r} at visible character {at}, its text says "
                f"{given[at : at + 40]!r}: ids and text are not of the same turn"
            )

    def decode_action(self, ids: Sequence[int]) -> str:
        """Text of a sampled turn without the stop token that ended it."""
        body = ids[:-1] if len(ids) and int(ids[-1]) in self.stop_token_ids else ids
        return self.decode(body)

    def shows_tools(self) -> bool:
        """Whether the template writes tool schemas into the prompt."""
        shape = prompt_shape([Message("user", "")])
        probe = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {"type": "object"}}}
        return self.text.cut_prompt(shape, json.dumps([probe])) != self.text.cut_prompt(shape, "")

    def _render(self, conversation: list[dict[str, Json]], tools: list[Json] | None, open_turn: bool) -> str:
        def apply(tools: list[Json] | None) -> Json:
            return self._hf.apply_chat_template(conversation, tools=tools, tokenize=False, add_generation_prompt=open_turn)

        try:
            try:
                text = apply(tools)
            except TypeError:
                text = apply(tools or [])  # some templates go through the tools without asking whether there are any
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError) as error:
            roles = ", ".join(m["role"] for m in conversation)
            raise UsageError(f"chat template of {self._dir} refuses a conversation of [{roles}]: {error}") from error
        assert isinstance(text, str)
        return text

    def _ids_of_template(self, text: str) -> tuple[int, ...]:
        return tuple(self._full.encode(text, add_special_tokens=False).ids)

    def _check_contents_stay_text(self) -> None:
        words = [token.content for token in self._full.get_added_tokens_decoder().values()]
        for probe in (*words, *_LOSSLESS_PROBE):
            ids = self.encode_content(probe)
            if not self._control_ids.isdisjoint(ids):
                raise UsageError(f"{self._dir}: the tokenizer turns the plain text {probe!r} into a control token")
            if self.decode(ids + ids) != probe + probe:
                raise UsageError(f"{self._dir}: the tokenizer loses text: {probe!r} does not decode to itself")

    def _takes_text_arguments(self) -> bool:
        """Some templates write a call's arguments as they are given, so that an object can't be rendered."""
        for arguments, is_text in (({}, False), ("{}", True)):
            try:
                self._render_call(arguments)
            except UsageError:
                continue
            return is_text
        return False

    def _render_call(self, arguments: Json) -> str:
        """An assistant's turn with one call of ``probe_tool``, from where its turn opens."""
        return self._render_call_as("0" * 9, arguments)

    def _render_call_as(self, identity: str, arguments: Json) -> str:
        call = {"id": identity, "type": "function", "function": {"name": "probe_tool", "arguments": arguments}}
        asked: list[dict[str, Json]] = [{"role": "user", "content": "?"}]
        answered: dict[str, Json] = {"role": "assistant", "content": "", "tool_calls": [call]}
        opened, whole = self._render(asked, None, True), self._render([*asked, answered], None, False)
        return whole.removeprefix(opened)

    def _choose_tool_format(self, chosen: ToolFormat | None) -> tuple[ToolFormat, str]:
        if chosen is not None:
            return chosen, "as set"
        for identity in ("0" * 9, "functions.probe_tool:0"):
            if (found := detect(partial(self._render_call_as, identity))) is not None:
                return found, "as the chat template writes them"
        if getattr(self._hf, "response_template", None):
            return ToolFormat.RESPONSE_TEMPLATE, "the tokenizer ships one"
        return ToolFormat.HERMES, "the chat template writes no known format; model.tool_format names another"

    def _make_reader(self) -> Reader:
        if self.tool_format is not ToolFormat.RESPONSE_TEMPLATE:
            return READERS[self.tool_format]
        if not getattr(self._hf, "response_template", None):
            raise UsageError(f"{self._dir}: the tokenizer ships no response_template to read tool calls by")
        return response_template_reader(self._hf)

    def _find_ends(self) -> tuple[str, tuple[int, ...]]:
        """Text of the control token that the template puts after a turn, and all tokens that end one, that one first.

        Others are in ``generation_config.json``. Where the template puts none, a turn ends with the token that opens the next
        message, and the file must name it.
        """
        path = self._dir / "generation_config.json"
        listed = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        more = [listed] if isinstance(listed, int) else (listed or [])
        controls = self._full.get_added_tokens_decoder()
        for token_id in self._template_ids(self.text.end_of_turn()):
            if token_id in controls:
                return controls[token_id].content, tuple(dict.fromkeys([token_id, *more]))
        if not more:
            raise UsageError(
                f"chat template of {self._dir} puts no control token after an assistant message, so no turn can end; "
                "if another token ends it, name it as eos_token_id in generation_config.json"
            )
        return "", tuple(dict.fromkeys(more))

    def rehearse(self, messages: Sequence[Message], tools: Sequence[Json] = ()) -> None:
        """`UsageError` when a conversation that begins so can't go on: before a run, not in its middle."""
        self.prompt(messages, tools)
        self._rehearse(messages, ("tool", "user") if tools else ("user",))

    def _check_append_only(self) -> None:
        """Rehearse what an episode does; a template that refuses tool results without calls is shown neutral calls."""
        user: list[Message] = [Message("user", "")]
        try:
            self._rehearse(user, ("tool", "user"))
        except NotASuffix:
            raise
        except UsageError:
            if self.follows:
                raise UsageError(
                    f"chat template of {self._dir} takes tool results only after calls, which a rewritten history does not "
                    "have: use model.history=append"
                ) from None
            self.neutral_calls = True
            self._rehearse(user, ("tool", "user"))

    def _rehearse(self, messages: Sequence[Message], roles: Sequence[Role]) -> None:
        turn, answer = Message("assistant", ""), Message(roles[0], "")
        once, twice = [*messages, turn], [*messages, turn, answer, turn]
        for history, new, last in (
            (once, [answer], self.end_of_turn_id),
            (twice, [answer], None),
            *((twice, [Message(role, "")], self.end_of_turn_id) for role in roles[1:]),
        ):
            try:
                self.observation(history, new, last)
            except NotASuffix as error:
                if not self.follows:
                    way_out = "model.history=template opens a new context instead"
                    neither = "and since it takes tool results only after calls, it can't be followed either"
                    raise NotASuffix(f"{error}; {neither if self.neutral_calls else way_out}") from None
                self.text.cut_whole_with(history_shape([*history, *new], neutral_calls=False), len(new))

    def drops_reasoning_after(self) -> tuple[str, ...]:
        """Roles of messages before which the template takes the reasoning of earlier turns out of the prompt."""
        dropped = []
        # A template that needs a call before a tool result shows the call alone, whatever was said before it.
        for role in ("user",) if self.neutral_calls else ("user", "tool"):
            try:
                pieces = self.text.cut_whole((("user", 0, ""), ("assistant", 0, ""), (role, 0, "")), frozenset([1]), "")
            except UsageError:
                continue
            if ("r", 1) not in pieces.keys:
                dropped.append(role)
        return tuple(dropped)

    def _refuse_control_text_in_calls(self, message: Message) -> None:
        for call in message.tool_calls:
            written = json.dumps([call.name, call.arguments], ensure_ascii=False)
            if not self._control_ids.isdisjoint(self._full.encode(written, add_special_tokens=False).ids):
                raise UsageError(f"a tool call to {call.name!r} in the prompt holds the text of a control token")

    def _controls_in(self, text: str) -> set[int]:
        """Control tokens whose text stands in ``text``, also inside of longer ones."""
        controls = self._full.get_added_tokens_decoder().items()
        return {i for i, token in controls if token.content.strip() and token.content in text}

    def _refuse_turns_in_tools(self, tools: Sequence[Json]) -> None:
        """The template writes declarations as they are: one could open a turn."""
        for tool in tools:
            written = json.dumps(tool, ensure_ascii=False)
            if not self._turn_ids.isdisjoint(self._full.encode(written, add_special_tokens=False).ids):
                raise UsageError(f"the declaration of a tool holds the text of a control token: {written:.300}")


def _visible(text: str) -> str:
    return "".join(text.replace("\ufffd", "").split())


def _load(folder: Path) -> PreTrainedTokenizerFast:
    if not (folder / "tokenizer.json").is_file():
        raise UsageError(f"{folder}: no tokenizer.json there; name a directory in Hugging Face format")
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _without_added_tokens(full: Tokenizer) -> Tokenizer:
    description = json.loads(full.to_str())
    return Tokenizer.from_str(json.dumps({**description, "added_tokens": []}))
