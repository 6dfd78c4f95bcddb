"""``agentrl``: the entry point. Errors become one paragraph and an exit code; the traceback goes to ``-v`` and the logs."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from agentrl import __version__
from agentrl.cli import (
    config_command,
    critic_command,
    db,
    doctor,
    env_command,
    export_command,
    gateway_command,
    replay_command,
    sandbox_command,
    show,
    tensorboard_command,
    train,
    view_command,
    workers,
)
from agentrl.errors import AgentRLError

app = typer.Typer(
    name="agentrl",
    help="Reinforcement learning for LLM agents, centred on a trajectory store.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="First run: agentrl train --env code_agent. Exit codes: 0 done, 1 the run or a check failed, 2 wrong usage or "
    "settings, 3 something outside is missing (database, sandbox, disk), 130 interrupted.",
)
app.command("train")(train.train)
app.command("show")(show.show)
app.command("view")(view_command.view)
app.command("export")(export_command.export)
app.command("tensorboard")(tensorboard_command.tensorboard)
app.command("gateway")(gateway_command.gateway)
app.command("doctor")(doctor.doctor)
app.add_typer(db.app, name="db")
app.add_typer(replay_command.app, name="replay")
app.add_typer(critic_command.app, name="critic")
app.add_typer(env_command.app, name="env")
app.add_typer(config_command.app, name="config")
app.add_typer(sandbox_command.app, name="sandbox")
app.command("trainer", hidden=True)(workers.trainer)
app.command("rollout", hidden=True)(workers.rollout)
app.command("reward", hidden=True)(workers.reward)


def _version(value: bool) -> None:
    if value:
        print(f"agentrl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show tracebacks."),
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    if verbose:
        os.environ["AGENTRL_VERBOSE"] = "1"


def main() -> None:
    """Run the command line; never lets a traceback reach a user who did not ask for it."""
    try:
        app(prog_name="agentrl")
    except KeyboardInterrupt:
        sys.exit(130)
    except (Exception, BaseExceptionGroup) as error:
        cause = _cause(error)
        if os.environ.get("AGENTRL_VERBOSE"):
            traceback.print_exc()
        print(f"agentrl: {_defect(error) if cause is None else cause}", file=sys.stderr)
        sys.exit(1 if cause is None else cause.exit_code)


def _cause(error: BaseException) -> AgentRLError | None:
    """The error of ours that a group of tasks ended with; None when something else is among them."""
    if isinstance(error, AgentRLError):
        return error
    if isinstance(error, BaseExceptionGroup):
        causes = [_cause(e) for e in error.exceptions]
        return causes[0] if all(causes) else None
    return None


def _defect(error: BaseException) -> str:
    """What nobody raised on purpose, with its place, in one line: a launcher reads the last one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}{place}. This was not foreseen: `agentrl -v` and the same command show where."


if __name__ == "__main__":
    main()
