"""``agentrl sandbox``: check a provider, build an image, make a base image without a registry."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from agentrl.errors import NotReadyError, RunFailed, UsageError

app = typer.Typer(help="Check sandbox providers and make their images.", no_args_is_help=True)

_ENGINE = typer.Option("docker", "--provider", help="docker or podman.")
_START = {"docker": ("start-docker.sh", "DOCKER_HOST"), "podman": ("start-podman.sh", "CONTAINER_HOST")}
"""What starts a daemon, and the variable that names one."""


@app.command("check")
def check(
    provider: str = typer.Option(
        None,
        help="docker, podman, bubblewrap, module:Class or path/to/file.py:Class. Default: the first that works.",
    ),
    unsafe_local: bool = typer.Option(False, "--unsafe-local-execution", help="Check the provider without isolation."),
) -> None:
    """Run the public self-check: what every provider must do, hostile programs included. Exit code 1 when a check fails."""
    from sandboxes.choose import choose
    from sandboxes.self_check import run_checks

    async def run() -> int:
        chosen, reason = await choose(provider, unsafe_local)
        print(reason)
        return await run_checks(chosen, lambda line: print(line, flush=True))

    sys.path.insert(0, "")
    with _told():
        failed = asyncio.run(run())
    print(f"{failed} failed" if failed else "every check passed")
    sys.exit(1 if failed else 0)


@app.command("build")
def build(
    name: str = typer.Argument(help="A shipped recipe such as base, or a folder with a Dockerfile."),
    base: str = typer.Option(
        None, help="The image to build on. Default: one from a registry, else from this system's packages."
    ),
    tag: str = typer.Option(None, help="Name of the image. Default: agentrl- and the folder's name."),
    network: bool = typer.Option(False, "--network", help="Open the network to the Dockerfile's commands."),
    provider: str = _ENGINE,
) -> None:
    """Build sandboxes/images/NAME/Dockerfile, or that of a folder, as the image agentrl-NAME and print its digest."""
    from sandboxes.images import PREFIX, RECIPES, build_image

    recipe = Path(name) if "/" in name or name in (".", "..") else RECIPES / name
    if not (recipe / "Dockerfile").is_file():
        shipped = ", ".join(sorted(path.parent.name for path in RECIPES.glob("*/Dockerfile")))
        own = "" if "/" in name else f" A folder of your own needs a slash: ./{name}"
        raise UsageError(f"there is no {recipe}/Dockerfile; shipped: {shipped}.{own}")
    image = tag or PREFIX + recipe.resolve().name.lower()
    with _told():
        built = build_image(_daemon(provider), recipe, image, base, network=network)
    print(f"{image} {built.digest}")
    if built.launcher:
        print("it has no Python 3.9 or later: sandboxes bring their own, under /opt/agentrl")


@app.command("bootstrap")
def bootstrap(
    provider: str = _ENGINE,
    archive_only: bool = typer.Option(False, "--archive-only", help="Make the archive; load it into no daemon."),
) -> None:
    """Make a base image from this distribution's own packages, where no registry can be reached. Made once per recipe."""
    from sandboxes.bootstrap import bootstrap as make
    from sandboxes.images import bootstrapped

    with _told():
        client = None if archive_only else _daemon(provider)
        archive, recipe = make()
        print(f"{archive} (recipe {recipe}, {archive.stat().st_size / 1e6:.0f} MB)")
        if client is not None:
            print(f"{bootstrapped(client)}: build on it with `agentrl sandbox build NAME --base {bootstrapped(client)}`")


@app.command("prune")
def prune(
    unused_for: float = typer.Option(30.0, "--unused-for", min=0.0, help="Days since its last use on this host."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would go."),
    provider: str = _ENGINE,
) -> None:
    """Remove images that a spec's setup prepared and nothing has started from for long."""
    from sandboxes.engine import ENGINE_ERRORS
    from sandboxes.prune import prune as remove

    with _told():
        client = _daemon(provider)
        try:
            images = remove(client, unused_for * 86_400, dry_run=dry_run)
        except ENGINE_ERRORS as error:
            raise NotReadyError(f"{provider}: {error}") from error
    for image in images:
        outcome = "removed" if image.removed else f"kept: {image.why_not}"
        print(f"{image.name}  {image.size / 1e6:.0f} MB  unused for {image.unused_s / 86_400:.1f} days  {outcome}")
    print(f"{sum(image.removed for image in images)} of {len(images)} prepared images removed")


def _daemon(provider: str) -> Any:
    from sandboxes.contract import SandboxError
    from sandboxes.engine import find_daemon

    if provider not in ("docker", "podman"):
        raise UsageError(f"--provider is {provider!r}; images are made by docker or podman")
    try:
        return find_daemon(provider).client
    except SandboxError as error:
        script, variable = _START[provider]
        raise NotReadyError(f"{error}; start one with scripts/{script}, or name it in {variable}") from error


@contextmanager
def _told() -> Iterator[None]:
    """Errors of sandboxes as those of the command line."""
    from sandboxes.contract import SandboxError, SandboxImageError

    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error
    except SandboxImageError as error:
        raise RunFailed(str(error)) from error
    except SandboxError as error:
        raise NotReadyError(str(error)) from error
