"""Builds the tokenizer of the default small model: byte-level BPE in which scaffolding costs one token a piece.

Text that repeats in every turn (template syntax, the head of a tool call) becomes a single added token, so a demonstration
takes about a quarter of the tokens of plain BPE, which is what makes copying learnable in a few hundred steps. All added
tokens are special: they arise only where the template or the policy writes them, never from a content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

PAD = "<|pad|>"
END_OF_TURN = "<|im_end|>"
CONTROL_TOKENS = (PAD, "<|im_start|>", END_OF_TURN, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TEMPLATE_SCAFFOLD = (
    "<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
    "\n<|im_start|>user\n<tool_response>",
    "</tool_response><|im_end|>\n<|im_start|>assistant\n",
)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}"
    "{{ '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}"
    "{%- else -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{ '<tool_call>' + call.function | tojson + '</tool_call>' }}"
    "{%- endfor -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
"""ChatML. Tool schemas are not shown: a model this small knows its tools from the warm start."""


@dataclass(frozen=True, slots=True)
class TokenizerPlan:
    """What an environment says about its own language, so that one token is one decision of the policy."""

    scaffold: tuple[str, ...] = ()
    """Text that actions repeat literally, each one token, for example the head of a tool call."""
    isolate: str = r"\d|\n"
    """Regular expression whose matches are pre-tokens of their own, so that no merge crosses them."""
    vocab_size: int = 1024
    """Upper limit; rare merges are not made."""
    min_frequency: int = 8
    """A merge must occur this often in the texts."""


def build_tokenizer(texts: Iterable[str], plan: TokenizerPlan, folder: Path) -> Tokenizer:
    """Train on ``texts`` (contents and actions) and write ``tokenizer.json`` and ``tokenizer_config.json`` to ``folder``."""
    scaffold = tuple(dict.fromkeys([*TEMPLATE_SCAFFOLD, *plan.scaffold]))
    isolate = pre_tokenizers.Split(Regex(plan.isolate), "isolated")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [isolate, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=plan.vocab_size - len(scaffold),
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=plan.min_frequency,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_between(texts, (*CONTROL_TOKENS, *scaffold)), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in scaffold])
    _write(tokenizer, folder)
    return tokenizer


def _between(texts: Iterable[str], cuts: Sequence[str]) -> Iterable[str]:
    """The text outside of added tokens: merges must not learn what is encoded otherwise."""
    pattern = re.compile("|".join(re.escape(cut) for cut in sorted(cuts, key=len, reverse=True)))
    return (piece for text in texts for piece in pattern.split(text) if piece)


def _write(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END_OF_TURN,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
