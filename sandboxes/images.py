"""Container images of sandboxes: found by the hash of their recipe, else built; what lacks a Python gets one.

The base of a build is the first that can be had: an image that is already here, one from a registry, one bootstrapped from
the distribution's packages. A change of the recipe makes a new image; nothing is built twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import docker.errors
import docker.utils
import requests

from sandboxes.bootstrap import bootstrap
from sandboxes.contract import SandboxError, SandboxImageError, SandboxUnavailable
from sandboxes.ownership import OWNER_LABEL, Owner

_log = logging.getLogger(__name__)

RECIPES = Path(__file__).parent / "images"
PREFIX = "agentrl-"
"""``agentrl-NAME`` is built from ``images/NAME``; any other name is somebody's image."""

REGISTRY_BASE = "python:3.11-slim"
_BASE = PREFIX + "base"
_RECIPE_LABEL = "agentrl.recipe"
_RUNTIME = Path(__file__).parent / "python_runtime"
_RUNTIME_LAUNCHER = ("/opt/agentrl/ld.so", "--library-path", "/opt/agentrl/lib", "/opt/agentrl/bin/python3")
_ASK_PYTHON = ["python3", "-I", "-S", "-c", "import ctypes, marshal, sys; sys.exit(sys.version_info < (3, 9))"]
_ASK_S = 60
_SHOWN_LINES = 8


@dataclass(frozen=True)
class Image:
    """``launcher``: what starts Python in it, when its own ``python3`` does not. ``template``: what /workspace starts with."""

    digest: str
    launcher: tuple[str, ...] = ()
    template: str = ""


def ensure_image(client: docker.DockerClient, name: str) -> Image:
    """The image, built or pulled when it is not there, with a Python added when it has none. Blocking.

    `SandboxImageError` for what another attempt would not help; `SandboxUnavailable` for a daemon or registry that fails.
    """
    with _told(name):
        recipe = recipe_of(name)
        if recipe is None:
            return _with_python(client, name, _ensure_here(client, name))
        wanted = recipe_hash(recipe)
        with contextlib.suppress(docker.errors.ImageNotFound):
            found = client.images.get(name)
            if found.labels.get(_RECIPE_LABEL) == wanted:
                return Image(str(found.id)) if name == _BASE else _with_python(client, name, str(found.id))
        return build_image(client, recipe, name)


def build_image(
    client: docker.DockerClient, recipe: Path, name: str, base: str | None = None, *, network: bool = False
) -> Image:
    """Build ``recipe/Dockerfile`` under a name, on ``base`` or the default where it takes a BASE. Errors as of `ensure_image`.

    ``network`` opens the network to its commands.
    """
    with _told(name):
        arguments = {"BASE": base or _base(client)} if _takes_base(recipe) else {}
        digest = _build(client, recipe, name, arguments, {_RECIPE_LABEL: recipe_hash(recipe)}, network)
        return Image(digest) if name == _BASE else _with_python(client, name, digest)


def recipe_of(name: str) -> Path | None:
    """The directory of one of our own recipes."""
    recipe = RECIPES / name.removeprefix(PREFIX)
    plain = re.fullmatch(r"[a-z0-9][a-z0-9_-]*", recipe.name) is not None and recipe.parent == RECIPES
    return recipe if name.startswith(PREFIX) and plain and (recipe / "Dockerfile").is_file() else None


def recipe_hash(recipe: Path) -> str:
    """Of every file below a recipe's directory."""
    digest = hashlib.sha256()
    for file in sorted(path for path in recipe.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(recipe)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except docker.errors.BuildError as error:
        lines = "".join(str(line.get("stream", "")) for line in error.build_log).strip().splitlines()[-_SHOWN_LINES:]
        raise SandboxImageError("\n  ".join([f"image {name}: its Dockerfile fails: {error.msg}", *lines])) from None
    except docker.errors.APIError as error:
        told = str(error.explanation or error)[:500]
        if error.status_code in (400, 403, 404):
            raise SandboxImageError(f"image {name}: {told}") from None
        raise SandboxUnavailable(f"image {name} is not here, and asking for it failed: {told}") from None
    except (docker.errors.DockerException, requests.RequestException, TypeError) as error:
        # TypeError is how the SDK refuses a folder without a Dockerfile.
        kind: type[SandboxError] = SandboxImageError if isinstance(error, TypeError) else SandboxUnavailable
        raise kind(f"image {name}: {error}") from None


def _takes_base(recipe: Path) -> bool:
    return re.search(r"^\s*ARG\s+BASE\b", (recipe / "Dockerfile").read_text(errors="replace"), re.M | re.I) is not None


def _build(
    client: docker.DockerClient,
    recipe: Path,
    name: str,
    arguments: dict[str, str],
    labels: dict[str, str],
    network: bool = False,
) -> str:
    mode = None if network else "none"
    image, _ = client.images.build(
        path=str(recipe), tag=name, buildargs=arguments, labels=labels, network_mode=mode, rm=True, forcerm=True
    )
    return str(image.id)


def _ensure_here(client: docker.DockerClient, name: str) -> str:
    try:
        return str(client.images.get(name).id)
    except docker.errors.ImageNotFound:
        repository, tag = docker.utils.parse_repository_tag(name)
        return str(client.images.pull(repository, tag or "latest").id)


def _with_python(client: docker.DockerClient, name: str, digest: str) -> Image:
    """The image itself when its ``python3`` is recent enough, else one made from it that holds a Python of ours as well."""
    runtime = f"agentrl-python-{digest.removeprefix('sha256:')[:16]}-{recipe_hash(_RUNTIME)[:8]}"
    with contextlib.suppress(docker.errors.ImageNotFound):
        return Image(str(client.images.get(runtime).id), _RUNTIME_LAUNCHER)
    if _has_python(client, digest):
        return Image(digest)
    _log.info("image %s has no Python of version 3.9 or later: one is added under /opt/agentrl", name)
    arguments = {"BASE": ensure_image(client, _BASE).digest, "IMAGE": digest}
    return Image(_build(client, _RUNTIME, runtime, arguments, {}), _RUNTIME_LAUNCHER)


def _has_python(client: docker.DockerClient, digest: str) -> bool:
    container = client.api.create_container(
        image=digest,
        entrypoint=_ASK_PYTHON,
        command=[],
        user="65534:65534",
        labels={OWNER_LABEL: Owner.current().prefix},
        host_config=client.api.create_host_config(network_mode="none", cap_drop=["ALL"], read_only=True, pids_limit=8),
    )["Id"]
    try:
        client.api.start(container)
        return int(client.api.wait(container, timeout=_ASK_S)["StatusCode"]) == 0
    except docker.errors.APIError as error:
        if error.status_code in (400, 404, 500) and "python3" in str(error):
            return False  # no such program
        raise
    finally:
        client.api.remove_container(container, force=True, v=True)


def _base(client: docker.DockerClient) -> str:
    try:
        _ensure_here(client, REGISTRY_BASE)
        return REGISTRY_BASE
    except (docker.errors.DockerException, requests.RequestException) as error:
        unreachable = str(error)
    _log.info("no %s here or in a registry: a base image is made from this distribution's packages", REGISTRY_BASE)
    try:
        return bootstrapped(client)
    except SandboxUnavailable as error:
        raise SandboxUnavailable(f"neither {REGISTRY_BASE} ({unreachable:.200}) nor a bootstrapped base ({error})") from None


def bootstrapped(client: docker.DockerClient) -> str:
    """Name of the base image from the distribution's packages, made and imported when it is not there."""
    archive, recipe = bootstrap()
    # In the name, not the tag: Podman's imports are all "latest".
    name = f"agentrl-bootstrap-{recipe}"
    try:
        client.images.get(name)
    except docker.errors.ImageNotFound:
        client.api.import_image_from_file(str(archive), repository=name, tag="latest")
    return name
