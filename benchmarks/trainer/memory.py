"""Peak memory of one long row's forward and backward pass, with log-probs in chunks and from whole logits.

Each variant runs in a process of its own, whose peak resident memory is read, less what the process had before the step.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

from benchmarks.report import Row, table

VOCABULARY = 49_152
TOKENS = 8_192


def measure(quick: bool) -> bool:
    """Print the table; whether chunks need less."""
    tokens = 1_024 if quick else TOKENS
    chunked, whole = (_run(tokens, chunks) for chunks in (True, False))
    row = Row(
        f"memory of a step over {tokens} tokens, vocabulary {VOCABULARY}",
        f"{chunked / tokens / 1e3:.0f} kB a token",
        f"whole logits: {whole / tokens / 1e3:.0f} kB a token",
        chunked / whole,
        "< 1",
        chunked < whole,
    )
    print(table([row]), flush=True)
    return bool(row.met)


def _run(tokens: int, chunks: bool) -> float:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.trainer.memory",
        json.dumps({"tokens": tokens, "chunks": chunks}),
    ]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main(tokens: int, chunks: bool) -> None:
    """Print the bytes that a step added to the peak of this process."""
    import torch

    from agentrl.trainer.megatron.microbatch import Row as TokenRow
    from agentrl.trainer.megatron.model import OptimizerSettings, TrainedModel
    from benchmarks.trainer.layout_rank import random_weights
    from benchmarks.trainer.steps import default_config

    torch.set_num_threads(1)
    hf = default_config() | {"vocab_size": VOCABULARY, "max_position_embeddings": tokens}
    model = TrainedModel(hf, "policy", random_weights(hf).items(), OptimizerSettings(), max_tokens=tokens)
    model.module.output_layer.chunk_logits = 2**22 if chunks else 2**62

    def step(length: int) -> None:
        row = TokenRow(torch.randint(0, VOCABULARY, (length,)), torch.arange(1, length))
        model.step([row], lambda o, c: -o["logprob"].sum(), denominator=float(length), learning_rate=1e-5)

    step(16)  # optimizer state and buffers exist afterwards
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(tokens)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
