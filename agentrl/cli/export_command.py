"""``agentrl export``: a trained policy as a Hugging Face model folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from agentrl.cli.session import reader_session, require_run
from agentrl.errors import UnknownVersion, UsageError

if TYPE_CHECKING:
    from agentrl.store.contract import RunRow
    from agentrl.store.reader import Reader
    from agentrl.types import PolicyVersion

Dtype = Literal["float32", "bfloat16", "float16"]


def export(
    run: str = typer.Argument(..., metavar="RUN", help="Run name or 'latest'."),
    folder: Path = typer.Argument(..., metavar="FOLDER", help="Folder to write; it must not exist yet or be empty."),
    version: int | None = typer.Option(None, "--version", min=0, help="Policy version. Default: the newest published one."),
    dtype: Dtype | None = typer.Option(None, "--dtype", help="Type of the weights. Default: as published."),
    max_shard_gb: float = typer.Option(5.0, "--max-shard-gb", min=1e-6, help="Largest file of weights, in 10^9 bytes."),
) -> None:
    """Write a trained policy as a model folder that transformers, SGLang and --model take.

    - agentrl export latest my-model
    - agentrl export code my-model --version 40 --dtype bfloat16
    """
    from agentrl.config.stored import from_row
    from agentrl.weights.model_folder import export_model

    with reader_session() as reader:
        row = require_run(reader, run)
        found = _version(reader, row, version)
    config, run_folder = from_row(row.spec.config)
    model_dir = run_folder / "model" if config.model.path is None else Path(config.model.path)
    done = export_model(model_dir, found, folder, run=row.spec.name, max_bytes=int(max_shard_gb * 1e9), dtype=dtype)
    files = "1 file" if done.files == 1 else f"{done.files} files with an index"
    print(
        f"wrote version {found.version} of run {row.spec.name} ({found.updates} policy updates) to {folder}: "
        f"{done.dtype}, {done.n_bytes / 1e6:,.1f} MB in {files}"
    )


def _version(reader: Reader, run: RunRow, wanted: int | None) -> PolicyVersion:
    if wanted is None:
        newest = reader.newest_version(run.id)
        while newest is not None and newest.status != "published":
            newest = None if newest.parent is None else reader.version(run.id, newest.parent)
        if newest is None:
            raise UsageError(f"Run {run.spec.name} has published no weights yet.")
        return newest
    try:
        return reader.version(run.id, wanted)
    except UnknownVersion:
        raise UsageError(
            f"Run {run.spec.name} has no version {wanted}. `agentrl db query versions --run {run.spec.name}` lists them."
        ) from None
