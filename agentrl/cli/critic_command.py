"""``agentrl critic``: a value model that knows its task before RL starts."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from agentrl.cli.session import reader_session, require_run
from agentrl.cli.workers import follow_parent
from agentrl.errors import UsageError

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig
    from agentrl.store.reader import Reader
    from agentrl.trainer.value_pretraining import Fit, Graded
    from agentrl.types import StoredTrajectory

app = typer.Typer(help="The critic of a run: pre-train it on stored trajectories.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Keeps `pretrain` a command of its own while it is the only one."""


@app.command("pretrain")
def pretrain(
    run: str = typer.Argument(..., metavar="RUN", help="Run whose trajectories are learned from, or 'latest'."),
    folder: Path = typer.Argument(..., metavar="FOLDER", help="Folder to write; it must not exist yet or be empty."),
    limit: int = typer.Option(4096, "--limit", min=1, help="Learn from the newest N trajectories."),
    epochs: int = typer.Option(2, "--epochs", min=1, help="How often each trajectory is learned from."),
    batch: int | None = typer.Option(None, "--batch", min=1, help="Trajectories of an update. Default: the run's."),
    learning_rate: float | None = typer.Option(None, "--learning-rate", help="Default: the critic's of the run."),
    preset: str | None = typer.Option(None, "--preset", help="Algorithm that the critic is for. Default: the run's."),
) -> None:
    """Pre-train a critic on what a run's trajectories earned. The folder is for model.critic_path.

    Example: agentrl critic pretrain latest my-critic --epochs 4
    """
    follow_parent()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # announcements of kernels that a CPU does not have
        from agentrl.trainer.pretrain_main import Pretraining, follow_pretraining, pretrain_critic, require_possible
    if int(os.environ.get("RANK", "0")) > 0:
        follow_pretraining()
        return
    from agentrl.config.stored import from_row

    with reader_session() as reader:
        row = require_run(reader, run)
        stored, run_folder = from_row(row.spec.config)
        config = _config(stored, preset, learning_rate)
        asked = Pretraining(
            config=config,
            model_dir=run_folder / "model" if config.model.path is None else Path(config.model.path),
            epochs=epochs,
            batch_size=batch or config.trainer.batch,
            target=folder.absolute(),
            origin={"run": row.spec.name, "role": "critic", "epochs": epochs},
        )
        keys = _trajectories(reader, row.id, limit)
        require_possible(asked, keys)
        if "RANK" not in os.environ and config.trainer.layout.ranks > 1:
            from agentrl.launch.ranks import run_ranks

            sys.exit(run_ranks([sys.executable, "-m", "agentrl.cli.main", *sys.argv[1:]], config.trainer.layout.ranks))
        _print(row.spec.name, folder, pretrain_critic(asked, keys, _reading(reader, row.id)))


def _trajectories(reader: Reader, run: int, limit: int) -> list[Graded]:
    from agentrl.store.evidence import training_trajectories
    from agentrl.trainer.value_pretraining import Graded

    return [Graded(*found) for found in training_trajectories(reader, run, limit)]


def _reading(reader: Reader, run: int) -> Callable[[Sequence[Graded]], list[StoredTrajectory]]:
    def read(keys: Sequence[Graded]) -> list[StoredTrajectory]:
        found = reader.trajectories(run, [key.id for key in keys], [key.start_version for key in keys])
        return [found[key.id] for key in keys if key.id in found]

    return read


def _print(run: str, folder: Path, fit: Fit) -> None:
    print(f"critic: {fit.trained} trajectories of run {run}, {fit.held_out} more held out by their tasks")
    if fit.refused:
        print(f"  {fit.refused} could not be used: broken, without actions or too long")
    explained = ["undefined" if value is None else f"{value:.2f}" for value in (fit.before, fit.after)]
    print(f"  explained variance of the held-out returns: {explained[0]} -> {explained[1]}")
    print(f"wrote {folder}; a run starts with it by model.critic_path={folder}")


def _config(config: RunConfig, preset: str | None, learning_rate: float | None) -> RunConfig:
    """The run's settings with a critic."""
    from agentrl.config.load import resolve

    if preset is not None:
        flags = {"model.path": config.model.path}
        chosen = resolve(environment=config.environment, preset=preset, file=None, flags=flags, overrides=[]).config
        config = config.model_copy(update={"algorithm": chosen.algorithm, "preset": preset})
    critic = config.algorithm.critic
    if critic is None:
        raise UsageError(
            f"Preset {config.preset} has no critic. Name the algorithm that the critic is for, for example --preset sao_turn."
        )
    if learning_rate is not None:
        if learning_rate <= 0:
            raise UsageError(f"--learning-rate must be above 0, got {learning_rate:g}")
        critic = critic.model_copy(update={"learning_rate": learning_rate})
    return config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"critic": critic})})
