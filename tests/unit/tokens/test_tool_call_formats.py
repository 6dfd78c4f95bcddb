"""Every format: what is written is read back; what is broken is a call with an error; no string raises."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tokens.tool_calls import READERS, parse, response_template_reader
from agentrl.types import ToolCall, ToolFormat

Arguments = Mapping[str, Any]
SCHEMAS = {
    "bash": {"properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
    "python": {"properties": {"code": {"type": "string"}, "timeout": {"type": "integer"}}, "required": ["code"]},
    "search": {
        "properties": {"q": {"type": "string"}, "filter": {"type": "object"}, "n": {"anyOf": [{"type": "integer"}]}},
        "required": ["q"],
    },
}


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def coder(name: str, arguments: Arguments) -> str:
    values = "".join(f"<parameter={k}>\n{v if isinstance(v, str) else dumps(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def glm(name: str, arguments: Arguments) -> str:
    values = "".join(
        f"<arg_key>{k}</arg_key>\n<arg_value>{v if isinstance(v, str) else dumps(v)}</arg_value>\n"
        for k, v in arguments.items()
    )
    return f"<tool_call>{name}\n{values}</tool_call>"


def deepseek_r1(name: str, arguments: Arguments) -> str:
    body = f"function<｜tool▁sep｜>{name}\n```json\n{dumps(arguments)}\n```"
    return f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


WRITERS: Mapping[str, tuple[ToolFormat, Callable[[str, Arguments], str]]] = {
    "hermes": (ToolFormat.HERMES, lambda n, a: f"<tool_call>\n{dumps({'name': n, 'arguments': a})}\n</tool_call>"),
    "qwen3_coder": (ToolFormat.QWEN3_CODER, coder),
    "glm": (ToolFormat.GLM, glm),
    "llama3": (ToolFormat.LLAMA3_JSON, lambda n, a: dumps({"name": n, "parameters": a})),
    "llama3_tagged": (ToolFormat.LLAMA3_JSON, lambda n, a: f"<|python_tag|>{dumps({'name': n, 'parameters': a})}"),
    "mistral": (ToolFormat.MISTRAL, lambda n, a: f"[TOOL_CALLS]{n}[ARGS]{dumps(a)}"),
    "mistral_id": (ToolFormat.MISTRAL, lambda n, a: f"[TOOL_CALLS]{n}[CALL_ID]abcdefghi[ARGS]{dumps(a)}"),
    "mistral_list": (ToolFormat.MISTRAL, lambda n, a: f"[TOOL_CALLS] [{dumps({'name': n, 'arguments': a, 'id': 'x' * 9})}]"),
    "deepseek": (
        ToolFormat.DEEPSEEK,
        lambda n, a: (
            f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a)}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
    "deepseek_r1": (ToolFormat.DEEPSEEK, deepseek_r1),
    "kimi": (
        ToolFormat.KIMI,
        lambda n, a: (
            f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{n}:0<|tool_call_argument_begin|>"
            f"{dumps(a)}<|tool_call_end|><|tool_calls_section_end|>"
        ),
    ),
    "fenced_json": (ToolFormat.FENCED, lambda n, a: f"```json\n{dumps({'name': n, 'arguments': a})}\n```"),
}
Writer = Callable[[str, Arguments], str]


@pytest.fixture(params=WRITERS)
def written(request: pytest.FixtureRequest) -> tuple[ToolFormat, Writer]:
    return WRITERS[request.param]


def read(text: str, tool_format: ToolFormat) -> tuple[ToolCall, ...]:
    return parse(text, SCHEMAS, reader=READERS[tool_format]).calls


@pytest.mark.parametrize(
    "arguments",
    [
        {"cmd": "ls"},
        {"cmd": "echo </tool_call> </parameter> </arg_value> <｜tool▁call▁end｜> <|tool_call_end|> [/TOOL_CALLS] test"},
        {"cmd": "two\nlines; and 日本 \U0001f600 \"quoted\" 'single' {brace} ]"},
        {"q": "x", "filter": {"b": [1, {"c": "}"}], "on": True, "none": None}, "n": 3},
        {},
    ],
)
def test_call__is_read_back_exactly(written: tuple[ToolFormat, Writer], arguments: dict[str, Any]) -> None:
    tool_format, write = written
    name = "search" if "q" in arguments else "bash"
    assert read(write(name, arguments), tool_format) == (ToolCall(name, arguments),)


def test_two_calls__both_in_order(written: tuple[ToolFormat, Writer]) -> None:
    tool_format, write = written
    first, second = ("search", {"q": "a", "filter": {"b": [1, {"c": "}"}]}}), ("bash", {"cmd": "日本\n."})
    calls = read(write(*first) + "\n" + write(*second), tool_format)
    assert [(c.name, c.arguments) for c in calls] == [first, second]


def test_text_around__is_content(written: tuple[ToolFormat, Writer]) -> None:
    tool_format, write = written
    lead = "" if tool_format is ToolFormat.LLAMA3_JSON else "I look.\n"
    parsed = parse(lead + write("bash", {"cmd": "ls"}) + "\nthen", SCHEMAS, reader=READERS[tool_format])
    assert [c.name for c in parsed.calls] == ["bash"]
    assert parsed.content.split() == (lead + "then").split()


def test_text_without_a_call__is_all_content(written: tuple[ToolFormat, Writer]) -> None:
    parsed = parse("just {text} with </tool_call>", SCHEMAS, reader=READERS[written[0]])
    assert (parsed.content, parsed.calls) == ("just {text} with </tool_call>", ())


def test_call_that_is_cut_anywhere__never_becomes_a_whole_one(written: tuple[ToolFormat, Writer]) -> None:
    tool_format, write = written
    whole = write("bash", {"cmd": "rm -rf /tmp/x"})
    executable = [cut for cut in range(len(whole)) if any(c.arguments for c in read(whole[:cut], tool_format))]
    closing = {ToolFormat.DEEPSEEK: "<｜tool▁calls▁end｜>", ToolFormat.KIMI: "<|tool_calls_section_end|>"}.get(tool_format, "")
    assert all(whole[cut:] in closing or closing.endswith(whole[cut:]) for cut in executable)


@pytest.mark.parametrize("body", ["{'a': 1}", '{"a": 1,}', '{"a": NaN}', '{"na', "", '["x"]', '{"a": "\\u0000"}', "[" * 9999])
def test_bad_arguments__are_a_call_with_an_error(body: str) -> None:
    for text, tool_format in (
        (f'<tool_call>{{"name": "bash", "arguments": {body}}}</tool_call>', ToolFormat.HERMES),
        (f"[TOOL_CALLS]bash[ARGS]{body}", ToolFormat.MISTRAL),
        (f"<｜tool▁call▁begin｜>bash<｜tool▁sep｜>{body}<｜tool▁call▁end｜>", ToolFormat.DEEPSEEK),
        (f"<|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{body}<|tool_call_end|>", ToolFormat.KIMI),
        (f'{{"name": "bash", "parameters": {body}}}', ToolFormat.LLAMA3_JSON),
        (f'```json\n{{"name": "bash", "arguments": {body}}}\n```', ToolFormat.FENCED),
    ):
        (call,) = read(text, tool_format)
        assert call.arguments is None
        assert call.error


@pytest.mark.parametrize(
    ("text", "tool_format", "error"),
    [
        ("<tool_call>bash</tool_call>", ToolFormat.QWEN3_CODER, "no <function=NAME>"),
        ("<tool_call><function=bash><parameter=cmd>ls</function></tool_call>", ToolFormat.QWEN3_CODER, "'cmd' is not closed"),
        ("<tool_call><function=bash>ls</function></tool_call>", ToolFormat.QWEN3_CODER, "neither <parameter=KEY>"),
        (coder("bash", {"cmd": "a"}).replace("</function>", "<parameter=cmd>b</parameter></function>"),
         ToolFormat.QWEN3_CODER, "given twice"),
        ("<tool_call>{}</tool_call>", ToolFormat.GLM, "no name"),
        ("<tool_call>bash<arg_key>cmd</arg_key><arg_value>ls</tool_call>", ToolFormat.GLM, "'cmd' is not closed"),
        ("[TOOL_CALLS]", ToolFormat.MISTRAL, "neither"),
        ("<｜tool▁call▁begin｜>bash<｜tool▁call▁end｜>", ToolFormat.DEEPSEEK, "no <｜tool▁sep｜>"),
        ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>bash<｜tool▁call▁end｜>", ToolFormat.DEEPSEEK, "no arguments"),
        ("<|python_tag|>print(1)", ToolFormat.LLAMA3_JSON, "not valid JSON"),
        ("```bash\nls", ToolFormat.FENCED, "not closed"),
    ],
)  # fmt: skip
def test_broken_call__says_what_is_wrong(text: str, tool_format: ToolFormat, error: str) -> None:
    (call,) = read(text, tool_format)
    assert call.arguments is None
    assert error in (call.error or "")


def test_values_written_as_text__get_the_declared_type() -> None:
    written = (
        '<parameter=q>5</parameter><parameter=n>5</parameter><parameter=filter>{"a": 1}</parameter><parameter=x>5</parameter>'
    )
    (call,) = read(f"<tool_call><function=search>{written}</function></tool_call>", ToolFormat.QWEN3_CODER)
    assert call.arguments == {"q": "5", "n": 5, "filter": {"a": 1}, "x": "5"}
    (call,) = read(glm("search", {"q": "True", "n": "many"}), ToolFormat.GLM)
    assert call.arguments == {"q": "True", "n": "many"}


def test_answer_in_json__is_no_llama_call() -> None:
    for text in ('{"answer": 42}', '{"name": "Ada"}', "{ not json", "[1, 2]"):
        parsed = parse(text, SCHEMAS, reader=READERS[ToolFormat.LLAMA3_JSON])
        assert (parsed.calls, parsed.content) == ((), text)


def test_several_llama_calls__with_any_separator() -> None:
    one = '{"name": "bash", "parameters": {"cmd": "ls"}}'
    assert len(read(f"{one}; {one},\n{one} done", ToolFormat.LLAMA3_JSON)) == 3


def test_code_block__calls_the_tool_of_its_language() -> None:
    text = "First:\n```python\ndef f():\n    return '```'\n```\nand\n```sh\nls\n```\nand\n```text\nno call\n```"
    parsed = parse(text, SCHEMAS, reader=READERS[ToolFormat.FENCED])
    assert [(c.name, c.arguments) for c in parsed.calls] == [
        ("python", {"code": "def f():\n    return '```'"}),
        ("bash", {"cmd": "ls"}),
    ]
    assert "no call" in parsed.content


def test_longer_fence__holds_shorter_ones() -> None:
    (call,) = read("````python\n```\ninner\n```\n````", ToolFormat.FENCED)
    assert call.arguments == {"code": "```\ninner\n```"}


def test_every_format__has_a_reader() -> None:
    assert set(READERS) == set(ToolFormat) - {ToolFormat.RESPONSE_TEMPLATE}


class TokenizerWithResponseTemplate:
    """transformers' parser with a template as a tokenizer ships it."""

    template: ClassVar = {
        "start_anchor": "<|assistant|>",
        "fields": {
            "content": {},
            "tool_calls": {
                "open": "<call>",
                "close": "</call>",
                "content": "json",
                "repeats": True,
                "transform": {"type": "function", "function": "{content}"},
                "optional": True,
            },
        },
    }

    def parse_response(self, text: str, *, prefix: str, tools: list[Any]) -> Any:
        from transformers.utils.chat_parsing import parse_response

        return parse_response(text, self.template, prefix=prefix, tools=tools)


def test_response_template__is_read_by_transformers() -> None:
    reader = response_template_reader(TokenizerWithResponseTemplate())
    parsed = reader('I look.<call>{"name": "bash", "arguments": {"cmd": "ls"}}</call>', SCHEMAS)
    assert parsed.calls == (ToolCall("bash", {"cmd": "ls"}),)
    assert parsed.content == "I look."
    assert reader("done", SCHEMAS).content == "done"


def test_response_template__what_it_can_not_read_is_one_malformed_call() -> None:
    (call,) = response_template_reader(TokenizerWithResponseTemplate())("<call>{oops</call>", SCHEMAS).calls
    assert call.arguments is None
    assert "can't be read" in (call.error or "")


PIECES = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<function=bash>", "<parameter=cmd>", "</parameter>", "</function>", "bash", "<arg_key>",
        "</arg_key>", "<arg_value>", "</arg_value>", "[TOOL_CALLS]", "[ARGS]", "[", "]", "{", "}", '{"name": "bash"',
        ', "arguments": {}}', '"parameters": {}}', "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
        "\n", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "```", "```python\n", "```json\n",
        "\\u0000", "<|python_tag|>", "<think>", "</think>", "\ud800", "\0", '"', " ",
    ]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=4), max_size=14).map("".join), st.sampled_from(sorted(READERS)), st.booleans())
def test_model_output_is_data__no_string_raises_in_any_format(text: str, tool_format: ToolFormat, opened: bool) -> None:
    parsed = parse(text, SCHEMAS, reader=READERS[tool_format], reasons=opened)
    assert text.startswith(parsed.reasoning)
    for call in parsed.calls:
        assert (call.arguments is None) == (call.error is not None)
        if call.arguments is not None:
            json.dumps([call.name, call.arguments], allow_nan=False, ensure_ascii=False).encode()
