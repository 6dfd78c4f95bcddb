"""Small chat templates that behave as those of the model families do, in few lines of our own.

``{{ call }}`` stands for how a family writes one call. Each template opens the assistant's turn when asked to.
"""

from __future__ import annotations

CHATML = """{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{ '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] -%}CALL{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

QWEN = CHATML.replace(
    "CALL",
    """{{ '\\n<tool_call>\\n' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson + '\\n</tool_call>' }}""",
)
QWEN3_CODER = CHATML.replace(
    "CALL",
    """{{ '<tool_call>\\n<function=' + c.function.name + '>\\n' }}
{%- for key, value in c.function.arguments.items() -%}
{{ '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor -%}{{ '</function>\\n</tool_call>' }}""",
)
GLM = """{%- for m in messages -%}
{%- if m.role == 'tool' -%}{{ '<|observation|>\\n' + m.content }}
{%- else -%}{{ '<|' + m.role + '|>\\n' + m.content }}
{%- for c in m.tool_calls or [] -%}
{{ '\\n<tool_call>' + c.function.name + '\\n' }}
{%- for key, value in c.function.arguments.items() -%}
{{ '<arg_key>' + key + '</arg_key>\\n<arg_value>' + (value if value is string else value | tojson) + '</arg_value>\\n' }}
{%- endfor -%}{{ '</tool_call>' }}{%- endfor -%}
{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}"""
LLAMA3 = """{{ '<|begin|>' }}{%- for m in messages -%}
{{ '<|header|>' + ('ipython' if m.role == 'tool' else m.role) + '<|/header|>\\n\\n' }}
{%- if m.tool_calls -%}
{{ {'name': m.tool_calls[0].function.name, 'parameters': m.tool_calls[0].function.arguments} | tojson }}
{%- else -%}{{ m.content | trim }}{%- endif -%}
{{ '<|eot_id|>' }}
{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|header|>assistant<|/header|>\\n\\n' }}{%- endif -%}"""
MISTRAL = """{{ '<s>' }}{%- for m in messages -%}
{%- if m.role == 'user' -%}{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'tool' -%}
{%- if m.tool_call_id | length != 9 -%}{{ raise_exception('ids have nine characters') }}{%- endif -%}
{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
{%- else -%}{{ m.content }}{%- for c in m.tool_calls or [] -%}
{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}{%- endfor -%}
{{ '</s>' }}{%- endif -%}{%- endfor -%}"""
MISTRAL_LIST = MISTRAL.replace(
    "{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments | tojson }}",
    "{{ '[TOOL_CALLS][' + {'name': c.function.name, 'arguments': c.function.arguments, 'id': c.id} | tojson + ']' }}",
)
DEEPSEEK = """{{ '<bos>' }}{%- for m in messages -%}
{%- if m.role == 'user' -%}{{ '<｜User｜>' + m.content + '<｜Assistant｜>' }}
{%- elif m.role == 'tool' -%}{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
{%- else -%}{{ m.content.split('</think>')[-1] }}{%- if m.tool_calls -%}{{ '<｜tool▁calls▁begin｜>' }}
{%- for c in m.tool_calls -%}
{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments + '<｜tool▁call▁end｜>' }}
{%- endfor -%}{{ '<｜tool▁calls▁end｜>' }}{%- endif -%}{{ '<eos>' }}{%- endif -%}{%- endfor -%}"""
"""Takes arguments as JSON text, and drops the reasoning of every turn that it renders."""
DEEPSEEK_R1 = DEEPSEEK.replace(
    "c.function.name + '<｜tool▁sep｜>' + c.function.arguments + '",
    "'function<｜tool▁sep｜>' + c.function.name + '\\n```json\\n' + c.function.arguments + '\\n```",
)
KIMI = """{%- for m in messages -%}{{ '<|im_' + m.role + '|>' }}
{%- if m.role == 'tool' -%}{{ '## Return of ' + m.tool_call_id + '\\n' }}{%- endif -%}{{ m.content }}
{%- if m.tool_calls -%}{{ '<|tool_calls_section_begin|>' }}{%- for c in m.tool_calls -%}
{{ '<|tool_call_begin|>' + c.id + '<|tool_call_argument_begin|>' + c.function.arguments | tojson + '<|tool_call_end|>' }}
{%- endfor -%}{{ '<|tool_calls_section_end|>' }}{%- endif -%}
{{ '<|im_end|>' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_assistant|>' }}{%- endif -%}"""

QWEN3 = """{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- set thought = m.reasoning_content or '' -%}{%- set said = m.content -%}
{%- if '</think>' in said -%}
{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip() -%}
{%- set said = said.split('</think>')[-1].strip() -%}
{%- endif -%}
{{ '<|im_start|>assistant\\n' }}{%- if loop.index0 > ns.last and thought -%}
{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif -%}
{{ said }}{%- for c in m.tool_calls or [] -%}{{ '<tool_call>' + c.function | tojson + '</tool_call>' }}{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' -%}{{ '<|im_start|>user\\n<tool_response>' + m.content + '</tool_response><|im_end|>\\n' }}
{%- else -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif -%}
{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""
"""Keeps reasoning inside of a tool loop, drops it from turns before the last user message."""
QWEN3_INLINE = QWEN3.replace("{%- set thought = m.reasoning_content or '' -%}", "{%- set thought = '' -%}")
THINKING = QWEN3.replace(
    "{{ '<|im_start|>assistant\\n' }}{%- endif -%}", "{{ '<|im_start|>assistant\\n<think>\\n' }}{%- endif -%}"
)
"""Opens the reasoning in the prompt."""

CONTROL_TOKENS = (
    "<think>", "</think>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "<|begin|>", "<|header|>",
    "<|/header|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>", "<s>", "</s>", "<bos>", "<eos>", "[INST]", "[/INST]",
    "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>", "<|im_user|>", "<|im_assistant|>", "<|im_tool|>", "<|im_system|>",
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)  # fmt: skip

FAMILIES = {
    "qwen": (QWEN, "hermes", "<|im_end|>"),
    "qwen3": (QWEN3, "hermes", "<|im_end|>"),
    "qwen3_inline": (QWEN3_INLINE, "hermes", "<|im_end|>"),
    "thinking": (THINKING, "hermes", "<|im_end|>"),
    "qwen3_coder": (QWEN3_CODER, "qwen3_coder", "<|im_end|>"),
    "glm": (GLM, "glm", "<|observation|>"),
    "llama3": (LLAMA3, "llama3_json", "<|eot_id|>"),
    "mistral": (MISTRAL, "mistral", "</s>"),
    "mistral_list": (MISTRAL_LIST, "mistral", "</s>"),
    "deepseek": (DEEPSEEK, "deepseek", "<eos>"),
    "deepseek_r1": (DEEPSEEK_R1, "deepseek", "<eos>"),
    "kimi": (KIMI, "kimi", "<|im_end|>"),
}
"""Name to (template, the format in which it writes calls, the token that ends a turn after a call)."""
