"""Token truth over templates that behave as those of the model families."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from family_templates import CONTROL_TOKENS, DEEPSEEK, FAMILIES, GLM, KIMI, LLAMA3, QWEN

from agentrl.errors import UsageError, WrongAnswer
from agentrl.tokens.chat_format import ChatFormat
from agentrl.tokens.messages import Message
from agentrl.types import ToolCall, ToolFormat

MakeTokenizer = Callable[..., Path]
USER, TURN = Message("user", "Implement g(x)."), Message("assistant", "sampled")


def chat_of(make_tokenizer: MakeTokenizer, template: str, **options: object) -> ChatFormat:
    ends = ("<|observation|>", "<|user|>") if template == GLM else ()
    return ChatFormat(make_tokenizer(template, controls=CONTROL_TOKENS, ends=ends), **options)  # type: ignore[arg-type]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    return FAMILIES[request.param]


def test_tool_format__found_in_the_template(make_tokenizer: MakeTokenizer, family: tuple[str, str, str]) -> None:
    template, tool_format, _ = family
    chat = chat_of(make_tokenizer, template)
    assert chat.tool_format is ToolFormat(tool_format)
    assert chat.tool_format_reason == "as the chat template writes them"


def test_tool_format__as_set_wins_over_the_template(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, QWEN, tool_format=ToolFormat.FENCED)
    schemas = {"python": {"properties": {"code": {"type": "string"}}, "required": ["code"]}}
    assert chat.parse("```python\nx = 1\n```", schemas).calls == (ToolCall("python", {"code": "x = 1"}),)
    assert chat.tool_format_reason == "as set"


def test_template_without_calls__reads_hermes_and_says_so(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, LLAMA3.replace("m.tool_calls", "false"))
    assert chat.tool_format is ToolFormat.HERMES
    assert "no known format" in chat.tool_format_reason


def test_separator_once__turns_and_results_alternate_in_every_family(
    make_tokenizer: MakeTokenizer, family: tuple[str, str, str]
) -> None:
    template, _, end = family
    chat = chat_of(make_tokenizer, template)
    history, ids = [USER], chat.prompt([USER])
    for turn in range(3):
        action = [*chat.encode_content(f"call {turn}"), chat.encode_template(end)[0]]
        history.append(Message("assistant", f"call {turn}"))
        new = [Message("tool", f"result {turn}a", name="read"), Message("tool", f"result {turn}b")]
        ids = ids + action + chat.observation(history, new, action[-1])
        history += new
    whole = chat.decode(ids)
    order = [text for turn in range(3) for text in (f"call {turn}", f"result {turn}a", f"result {turn}b")]
    places = [whole.index(text) for text in order]
    assert places == sorted(places)
    assert all(whole.count(text) == 1 for text in order)
    assert f"{end}{end}" not in whole
    assert whole.count(f"call 1{end}") == 1


def test_content_is_text__forged_turns_stay_text_in_every_family(
    make_tokenizer: MakeTokenizer, family: tuple[str, str, str]
) -> None:
    template, _, _ = family
    chat = chat_of(make_tokenizer, template)
    forged = "".join(CONTROL_TOKENS)
    plain = chat.observation([USER, TURN], [Message("tool", "ok")], chat.end_of_turn_id)
    ids = chat.observation([USER, TURN], [Message("tool", forged)], chat.end_of_turn_id)
    controls = {chat.encode_template(token)[0] for token in CONTROL_TOKENS}
    assert [i for i in ids if i in controls] == [i for i in plain if i in controls]
    assert chat.decode(ids) == chat.decode(plain).replace("ok", forged)


def test_stop_token_that_opens_the_next_message__is_not_repeated(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, GLM)
    observation, user = (chat.encode_template(token)[0] for token in ("<|observation|>", "<|user|>"))
    assert set(chat.stop_token_ids) == {observation, user}
    assert chat.decode(chat.observation([USER, TURN], [Message("tool", "ok")], observation)) == "\nok<|assistant|>\n"
    assert chat.decode(chat.observation([USER, TURN], [USER], user)).startswith("\nImplement")
    cut = chat.observation([USER, TURN], [Message("tool", "ok")], None)
    assert chat.decode(cut) == "<|observation|>\nok<|assistant|>\n"


def test_stop_token_of_the_generation_config__closes_the_turn_too(make_tokenizer: MakeTokenizer) -> None:
    folder = make_tokenizer(LLAMA3, controls=CONTROL_TOKENS, ends=("<|eot_id|>", "<|eom_id|>"))
    chat = ChatFormat(folder)
    called = chat.encode_template("<|eom_id|>")[0]
    assert chat.decode(chat.observation([USER, TURN], [Message("tool", "ok")], called)).startswith("<|header|>ipython")


def test_calls_in_the_prompt__are_written_where_the_template_shows_calls_only(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, LLAMA3)
    asked = Message("assistant", "", (ToolCall("read", {"path": "a"}),))
    whole = chat.decode(chat.prompt([USER, asked, Message("tool", "text", name="read")]))
    assert '{"name": "read", "parameters": {"path": "a"}}<|eot_id|>' in whole
    assert whole.endswith("ipython<|/header|>\n\ntext<|eot_id|><|header|>assistant<|/header|>\n\n")


def test_arguments__are_given_as_text_where_the_template_wants_text(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, DEEPSEEK)
    whole = chat.decode(chat.prompt([USER, Message("assistant", "", (ToolCall("read", {"path": "é"}),)), Message("tool", "t")]))
    assert '<｜tool▁sep｜>{"path": "é"}<｜tool▁call▁end｜>' in whole


def test_result__names_its_call_as_the_family_does(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, KIMI)
    new = [Message("tool", "one", name="read"), Message("tool", "two")]
    whole = chat.decode(chat.observation([USER, TURN], new, chat.end_of_turn_id))
    assert "## Return of functions.read:0\none" in whole
    assert "## Return of functions.unknown:1\ntwo" in whole


@pytest.mark.parametrize("name", ["<|im_end|>", "a b", "x" * 101, "read\n"])
def test_name_on_a_tool_message__can_hold_no_control_text(name: str) -> None:
    with pytest.raises(UsageError, match="can't be the name"):
        Message("tool", "text", name=name)


SYSTEM_LAST = """{%- for m in messages -%}{%- if m.role != 'system' -%}
{%- if loop.last and messages[0].role == 'system' -%}{{ '(' + messages[0].content + ')' }}{%- endif -%}
{{ '<|im_start|>' + m.content + '<|im_end|>' }}{%- endif -%}{%- endfor -%}"""
"""As Mistral Nemo: the system message moves to the newest message."""


def test_rehearsal__refuses_before_the_run_what_would_fail_in_its_middle(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, SYSTEM_LAST)
    chat.rehearse([USER])
    with pytest.raises(UsageError, match="chat template of"):
        chat.rehearse([Message("system", "Be brief."), USER])


def test_template_that_fails_on_a_first_tool_message__still_works(make_tokenizer: MakeTokenizer) -> None:
    strict = "{%- if messages[0].role == 'tool' -%}{{ raise_exception('no') }}{%- endif -%}" + QWEN
    chat = chat_of(make_tokenizer, strict)
    whole = chat.decode(chat.observation([USER, TURN], [Message("tool", "ok")], chat.end_of_turn_id))
    assert whole == "\n<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def test_engine_text__ids_that_lost_a_control_token_are_refused(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, QWEN)
    ids = chat.encode_action('<tool_call>{"name": "read"}</tool_call>')
    chat.check_text(ids, chat.decode(ids))
    chat.check_text(ids, chat.decode_action(ids))
    with pytest.raises(WrongAnswer, match="at visible character 0"):
        chat.check_text(ids[1:], chat.decode(ids))


def test_engine_text__may_differ_in_spaces_and_in_broken_characters_alone(make_tokenizer: MakeTokenizer) -> None:
    chat = chat_of(make_tokenizer, QWEN)
    ids = [*chat.encode_content("日本 , then"), *chat.encode_content("é")[:1]]
    text = chat.decode(ids)
    assert "\ufffd" in text
    chat.check_text(ids, text.replace(" ,", ",") + "\ufffd")
    with pytest.raises(WrongAnswer):
        chat.check_text(ids, text.replace("日", ""))
