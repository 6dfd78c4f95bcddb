"""The default small model is an ordinary Hugging Face directory with a compact tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from agentrl.engine.transformer import Decoder
from agentrl.errors import UsageError
from agentrl.model.config import ModelConfig
from agentrl.model.model_dir import open_model_dir
from agentrl.model.tiny import build_tiny_model
from agentrl.model.tiny_tokenizer import CONTROL_TOKENS, TokenizerPlan, build_tokenizer

PLAN = TokenizerPlan(
    scaffold=(
        '<tool_call>{"name": "python", "arguments": {"code": "def ',
        '<tool_call>{"name": "read", "arguments": {"path": "',
        '"}}</tool_call>',
        "return x",
    ),
    isolate=r"\d|, then |; |\n|\(x\): |\(x\)(?= as)",
)
OPERATIONS = {
    "add {} to each": "x=[a+{} for a in x]",
    "keep items above {}": "x=[a for a in x if a>{}]",
    "sort descending": "x=sorted(x)[::-1]",
    "square each": "x=[a*a for a in x]",
}


def demonstration(first: str, second: str, file: str, name: str) -> list[tuple[str, str]]:
    """(role, content) of a typical episode: read, write, finish."""
    code = "; ".join(OPERATIONS[step].format(4) for step in (first, second))
    task = ", then ".join(step.format(4) for step in (first, second))
    return [
        ("user", f"Implement {name}(x) as {file} says."),
        ("assistant", f'<tool_call>{{"name": "read", "arguments": {{"path": "{file}"}}}}</tool_call>'),
        ("tool", task),
        (
            "assistant",
            f'<tool_call>{{"name": "python", "arguments": {{"code": "def {name}(x): {code}; return x"}}}}</tool_call>',
        ),
        ("tool", "passed"),
        ("assistant", "done"),
    ]


def demonstrations() -> list[list[tuple[str, str]]]:
    return [
        demonstration(first, second, file, name)
        for first in OPERATIONS
        for second in OPERATIONS
        for file in ("task.txt", "spec.txt", "notes.md")
        for name in ("f", "solve", "run")
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    build_tokenizer((text for demo in demonstrations() for _, text in demo), PLAN, folder)
    build_tiny_model(folder, seed=3, max_positions=256)
    return folder


def test_typical_demonstration__takes_a_quarter_of_the_tokens_of_plain_bpe(folder: Path, tmp_path: Path) -> None:
    texts = [text for demo in demonstrations() for _, text in demo]
    plain = build_tokenizer(texts, TokenizerPlan(vocab_size=300), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def n_tokens(demo: list[tuple[str, str]]) -> int:
        conversation = [{"role": role, "content": text} for role, text in demo]
        text = tokenizer.apply_chat_template(conversation, tokenize=False)
        return len(tokenizer.encode(text, add_special_tokens=False))

    lengths = [n_tokens(demo) for demo in demonstrations()]
    assert 32 <= sum(lengths) / len(lengths) <= 42
    plain_text = "".join(text for _, text in demonstrations()[0])
    assert len(plain.encode(plain_text, add_special_tokens=False).ids) > 2 * lengths[0]


def test_directory__loads_in_transformers_with_the_same_numbers(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.generation_config.eos_token_id == [tokenizer.eos_token_id]
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Implement f(x)."}], add_generation_prompt=True)[
        "input_ids"
    ]
    assert tokenizer.decode(ids) == "<|im_start|>user\nImplement f(x).<|im_end|>\n<|im_start|>assistant\n"
    opened = open_model_dir(folder)
    decoder = Decoder(opened.config, dict(opened.tensors()), 256)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(decoder.sequence_logits(np.array(ids)), expected, atol=1e-5, rtol=1e-5)


def test_added_tokens__are_all_special_and_control_tokens_come_first(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    added = tokenizer.added_tokens_decoder
    assert all(token.special for token in added.values())
    assert tuple(added[i].content for i in range(len(CONTROL_TOKENS))) == CONTROL_TOKENS
    assert set(PLAN.scaffold) <= {token.content for token in added.values()}


def test_isolated_pieces__are_never_part_of_a_larger_token(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = [t for t in tokenizer.get_vocab() if t not in {a.content for a in tokenizer.added_tokens_decoder.values()}]
    assert not [t for t in plain if len(t) > 1 and any(c.isdigit() for c in t)]
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("add 4 to each, then square each", add_special_tokens=False)]
    assert pieces == ["add ", "4", " to each", ", then ", "square each"]


def test_same_seed__same_bytes_and_another_seed_other_weights(folder: Path, tmp_path: Path) -> None:
    texts = [text for demo in demonstrations() for _, text in demo]
    for name, seed in (("same", 3), ("other", 4)):
        build_tokenizer(texts, PLAN, tmp_path / name)
        build_tiny_model(tmp_path / name, seed=seed, max_positions=256)
    for file in ("tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors"):
        assert (tmp_path / "same" / file).read_bytes() == (folder / file).read_bytes()
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()


def test_initial_weights__residual_projections_are_smaller(folder: Path) -> None:
    tensors = dict(open_model_dir(folder).tensors())
    assert tensors["model.layers.0.self_attn.q_proj.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert tensors["model.layers.0.mlp.down_proj.weight"].std().item() == pytest.approx(0.01, rel=0.05)
    assert (tensors["model.norm.weight"] == 1).all()
    assert sum(t.numel() for t in tensors.values()) < 0.25e6


def test_model_without_tokenizer__refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tokenizer"):
        build_tiny_model(tmp_path, seed=0)


def test_sizes__follow_the_arguments(folder: Path, tmp_path: Path) -> None:
    build_tokenizer(["text"], TokenizerPlan(), tmp_path)
    config = build_tiny_model(tmp_path, seed=0, d=64, layers=3, heads=4, kv=4, ff=80, max_positions=99)
    assert config == ModelConfig.read(tmp_path)
    assert (config.hidden_size, config.n_layers, config.n_kv_heads, config.max_positions) == (64, 3, 4, 99)
