"""``agentrl db retain``, ``export``, ``import`` and ``stats``: a store that grows, kept small and carried about."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agentrl.cli.session import MOST, require_run, store_session
from agentrl.monitor.terminal import visible

if TYPE_CHECKING:
    from agentrl.store.retention import Bucket
    from agentrl.store.statistics import RunStatistics, StoreStatistics


def add_to(app: typer.Typer) -> None:
    """Register the commands of this module."""
    app.command("retain")(retain_versions)
    app.command("export")(export)
    app.command("import")(import_)
    app.command("stats")(stats)


def retain_versions(
    run: str = typer.Option(..., "--run", help="Run name or 'latest'."),
    keep_versions: int = typer.Option(..., "--keep-versions", max=MOST, help="Published versions to keep, the newest ones."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be removed; change nothing."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Remove the trajectories of old policy versions, for example: agentrl db retain --run latest --keep-versions 128."""
    from agentrl.store.retention import Retained, retain, retention_plan

    with store_session() as session:
        row = require_run(session.store, run)
        if dry_run:
            plan = retention_plan(session.store, row.id, keep_versions)
            done = Retained([b for b in plan if b.needed is None], [b for b in plan if b.needed is not None], 0)
        else:
            done = retain(session.store, row.id, keep_versions)
    if as_json:
        print(json.dumps({"run": row.spec.name, "dry_run": dry_run, **asdict(done)}))
        return
    _print_buckets("would remove" if dry_run else "removed", done.removed, done.kept)
    if done.requests:
        print(f"forgot {done.requests} requests of workers older than a day")


def _print_buckets(verb: str, removed: list[Bucket], kept: list[Bucket]) -> None:
    for bucket in kept:
        print(f"kept versions {bucket.low} to {bucket.high - 1}: {bucket.needed}")
    for bucket in removed:
        print(
            f"{verb} versions {bucket.low} to {bucket.high - 1}: {bucket.created} training and {bucket.evaluated} evaluation "
            f"trajectories, {size(bucket.bytes)}"
        )
    if not removed:
        print(f"{verb} nothing" + ("" if kept else ": no 64 versions in a row are all older than those to keep"))


def export(
    run: str = typer.Argument(..., help="Run name or 'latest'."),
    folder: Path = typer.Argument(..., help="Folder to write; it must not exist yet or be empty."),
    file_format: str = typer.Option("jsonl", "--format", help="jsonl or parquet (needs the extra 'parquet')."),
    snapshot: bool = typer.Option(False, "--snapshot", help="Of a run at work: write what has come to rest."),
) -> None:
    """Write a run to files, exactly, for example: agentrl db export latest backup --format parquet."""
    from agentrl.store.archive_export import export_run

    with store_session() as session:
        done = export_run(session.store, require_run(session.store, run).id, folder, file_format, snapshot)
    print(
        f"wrote run {visible(done.run)} to {folder}: {done.trajectories:,} trajectories, {done.files} files, {size(done.bytes)}"
    )


def import_(
    folder: Path = typer.Argument(..., help="Folder that `agentrl db export` wrote."),
    name: str | None = typer.Option(None, "--name", help="Name of the new run. Default: the name it had."),
) -> None:
    """Read a run back from files, for example: agentrl db import backup --name copy."""
    from agentrl.store.archive_import import import_archive

    with store_session() as session:
        done = import_archive(session.store, folder, name)
    print(f"imported run {visible(done.name)} ({done.status}): {done.trajectories:,} trajectories")


def stats(
    run: str | None = typer.Option(None, "--run", help="Run name or 'latest'. Default: all runs."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """How big the store is and how fast it grows, for example: agentrl db stats --run latest."""
    from agentrl.store.statistics import store_statistics

    with store_session() as session:
        found = store_statistics(session.store, None if run is None else require_run(session.store, run).id)
    if as_json:
        print(json.dumps(found.as_json()))
        return
    for one in found.runs:
        _print_run(one)
    _print_shared(found)


def _print_run(one: RunStatistics) -> None:
    about = "about " if one.about else ""
    print(f"run {visible(one.run)} ({one.status})")
    print(f"  steps          {one.step}, policy updates {one.updates}")
    print(f"  stored         {about}{one.trajectories:,} trajectories, {one.segments:,} segments, {one.tokens:,} tokens")
    print(
        f"  last hour      {one.hour_trajectories:,} trajectories opened, {one.hour_tokens:,} tokens, {one.hour_steps:,} steps"
    )
    print(f"  queue          {', '.join(f'{n:,} {place}' for place, n in one.places.items())}, {one.eval_open:,} in evaluation")
    print(f"  bytes on disk  {_sizes(one.bytes)}")
    print(f"  retired        {one.retired_trajectories:,} trajectories, {size(one.retired_bytes)}")


def _print_shared(found: StoreStatistics) -> None:
    print("all runs")
    largest = dict(list(found.shared_bytes.items())[:6])
    print(f"  bytes on disk  {_sizes(largest)}, all shared tables {size(sum(found.shared_bytes.values()))}")
    dead = ", ".join(f"{name} {n:,}" for name, (_, n) in found.dead_rows.items() if n)
    print(f"  dead rows      about {dead}" if dead else "  dead rows      none in the queue tables")
    oldest = found.oldest_transaction
    if oldest is None:
        print("  transactions   none open")
    else:
        print(
            f"  transactions   the oldest is open for {oldest.seconds:.0f} s: process {oldest.pid}, user {oldest.user}, "
            f"{visible(oldest.application or 'unnamed')}, {oldest.state}"
        )


def _sizes(table: dict[str, int]) -> str:
    return ", ".join(f"{name} {size(n)}" for name, n in table.items()) or "nothing"


def size(n: float) -> str:
    """Bytes for people: 1536 -> '1.5 kB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TB"
