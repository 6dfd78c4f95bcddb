"""``agentrl replay``: a stored run checked against its template, its weights and its own ledger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import typer

from agentrl.cli.session import reader_session, require_run
from agentrl.errors import UsageError

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig
    from agentrl.replay.check import Evidence, ReplayCheck
    from agentrl.replay.rescore import Rescorer
    from agentrl.store.reader import Reader
    from agentrl.types import StoredTrajectory

app = typer.Typer(help="Check what a run has stored.", no_args_is_help=True)
PAGE = 256


@app.callback()
def group() -> None:
    """Keeps `check` a command of its own while it is the only one."""


@app.command("check")
def check(
    run: str = typer.Argument("latest", metavar="RUN", help="Run name or 'latest'."),
    limit: int | None = typer.Option(None, "--limit", min=1, help="Only the newest N trajectories. Default: all."),
    tolerance: float | None = typer.Option(
        None, "--tolerance", min=0.0, help="Largest difference of a log-prob. Default: 1e-4, for an engine in float32."
    ),
) -> None:
    """Re-render and re-score stored trajectories; ends with code 1 at the first row that lies and names it.

    Example: agentrl replay check latest --limit 200
    """
    from agentrl.config.stored import from_row

    with reader_session() as reader:
        found = require_run(reader, run)
        config, folder = from_row(found.spec.config)
        checker, rescorer = _checker(reader, found.id, config, folder, tolerance)
        from agentrl.replay.check import pages
        from agentrl.store.evidence import ended_trajectories

        ended = ended_trajectories(reader, found.id, limit)
        if not ended:
            raise UsageError(f"No trajectory of run {found.spec.name} has ended yet: there is nothing to check.")
        for page in pages(ended, PAGE):
            checker.check(_evidence(reader, found.id, page))
        _check_steps(reader, found.id, checker, limit)
    _print(found.spec.name, checker, rescorer)


def _checker(
    reader: Reader, run: int, config: RunConfig, folder: Path, tolerance: float | None
) -> tuple[ReplayCheck, Rescorer]:
    import torch

    from agentrl.environment.registry import load
    from agentrl.model.model_dir import open_model_dir
    from agentrl.replay.check import ReplayCheck
    from agentrl.replay.rescore import Rescorer
    from agentrl.tokens.chat_format import ChatFormat
    from agentrl.trainer.gate import TOLERANCE

    torch.set_num_threads(1 if not torch.cuda.is_available() else torch.get_num_threads())
    model = open_model_dir(Path(config.model.path) if config.model.path else folder / "model")
    settings = config.model
    chat = ChatFormat(model.path, tool_format=settings.chosen_tool_format, follow=settings.history == "template")
    allowed = TOLERANCE if tolerance is None else tolerance
    rescorer = Rescorer(model, lambda version: reader.version(run, version), tolerance=allowed)
    checker = ReplayCheck(
        chat, load(config.environment), config.algorithm, rescorer, max_context=int(model.config.raw["max_position_embeddings"])
    )
    return checker, rescorer


def _evidence(reader: Reader, run: int, keys: Sequence[tuple[UUID, int]]) -> list[Evidence]:
    from agentrl.replay.check import Evidence
    from agentrl.store.evidence import content_hashes, tasks_of

    ids, starts = [identity for identity, _ in keys], [start for _, start in keys]
    stored = reader.trajectories(run, ids, starts)
    tasks, hashes = tasks_of(reader, run, ids, starts), content_hashes(reader, run, ids, starts)
    return [Evidence(stored[i], tasks.get(i), hashes[i]) for i in ids if i in stored]


def _check_steps(reader: Reader, run: int, checker: ReplayCheck, limit: int | None) -> None:
    """The newest steps, until they hold ``limit`` trajectories."""
    from agentrl.store.evidence import step_evidence, steps_of

    seen = 0
    for step, branch in reversed(steps_of(reader, run)):
        evidence = step_evidence(reader, run, step, branch)
        ids = [trained.trajectory for trained in evidence.trained]
        if ids:
            stored: Any = reader.trajectories(run, ids, evidence.start_versions)
            rows: list[StoredTrajectory] = [stored[identity] for identity in ids]
            checker.check_step(rows, evidence)
        seen += len(ids)
        if limit is not None and seen >= limit:
            return


def _print(name: str, checker: ReplayCheck, rescorer: Rescorer) -> None:
    report = checker.report
    versions = _span(rescorer.versions)
    lines = {
        "run": name,
        "checked": f"{report.trajectories} trajectories, {report.segments} segments, {report.actions} action tokens",
        "prefixes": f"{report.rendered} segments written again, the same ids",
        "rewards": f"{report.verdicts} verdicts, {report.turn_rewards} rewards of single turns",
        "ledger": f"{report.recredited} trained trajectories have the advantages that their rewards give",
        "log-probs": f"{rescorer.tokens} tokens re-scored with the weights of version {versions}, "
        f"largest difference {rescorer.largest:.1e}",
    }
    if report.unrendered:
        lines["not rendered"] = f"{report.unrendered} segments: another version of the environment, or a context of its own"
    if rescorer.gone:
        lines["not scored"] = f"{rescorer.skipped} tokens of version {_span(rescorer.gone)}: the weights are gone"
    width = max(map(len, lines))
    for subject, text in lines.items():
        print(f"  {subject:<{width}}  {text}")
    print("No lie was found.")


def _span(versions: set[int]) -> str:
    if len(versions) <= 1:
        return str(*versions) or "none"
    return f"{min(versions)} to {max(versions)}"
