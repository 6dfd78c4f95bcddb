"""Container images of sandboxes: found by the hash of their recipe, else built.

The base of a build is the first that can be had: an image that is already here, one from a registry, one bootstrapped from
the distribution's packages. A change of the recipe makes a new image; nothing is built twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from pathlib import Path

import docker
import docker.errors
import requests

from sandboxes.bootstrap import bootstrap
from sandboxes.contract import SandboxUnavailable

_log = logging.getLogger(__name__)

RECIPES = Path(__file__).parent / "images"
PREFIX = "agentrl-"
"""``agentrl-NAME`` is built from ``images/NAME``; any other name is somebody's image."""

REGISTRY_BASE = "python:3.11-slim"
_RECIPE_LABEL = "agentrl.recipe"


def ensure_image(client: docker.DockerClient, name: str) -> str:
    """Digest of the image, built or pulled when it is not there. Blocking. `SandboxUnavailable` says what failed."""
    recipe = RECIPES / name.removeprefix(PREFIX)
    try:
        if name.startswith(PREFIX) and (recipe / "Dockerfile").is_file():
            return _ensure_built(client, name, recipe)
        return _ensure_here(client, name)
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise SandboxUnavailable(f"image {name}: {error}") from None


def recipe_hash(recipe: Path) -> str:
    """Of every file below a recipe's directory."""
    digest = hashlib.sha256()
    for file in sorted(path for path in recipe.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(recipe)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _ensure_built(client: docker.DockerClient, name: str, recipe: Path) -> str:
    wanted = recipe_hash(recipe)
    with contextlib.suppress(docker.errors.ImageNotFound):
        image = client.images.get(name)
        if image.labels.get(_RECIPE_LABEL) == wanted:
            return str(image.id)
    image, _ = client.images.build(
        path=str(recipe),
        tag=name,
        buildargs={"BASE": _base(client)},
        labels={_RECIPE_LABEL: wanted},
        network_mode="none",
        rm=True,
        forcerm=True,
    )
    return str(image.id)


def _ensure_here(client: docker.DockerClient, name: str) -> str:
    try:
        return str(client.images.get(name).id)
    except docker.errors.ImageNotFound:
        repository, _, tag = name.partition(":")
        return str(client.images.pull(repository, tag or "latest").id)


def _base(client: docker.DockerClient) -> str:
    try:
        _ensure_here(client, REGISTRY_BASE)
        return REGISTRY_BASE
    except (docker.errors.DockerException, requests.RequestException) as error:
        unreachable = str(error)
    _log.info("no %s here or in a registry: a base image is made from this distribution's packages", REGISTRY_BASE)
    try:
        archive, recipe = bootstrap()
    except SandboxUnavailable as error:
        raise SandboxUnavailable(f"neither {REGISTRY_BASE} ({unreachable:.200}) nor a bootstrapped base ({error})") from None
    # In the name, not the tag: Podman's imports are all "latest".
    name = f"agentrl-bootstrap-{recipe}"
    try:
        client.images.get(name)
    except docker.errors.ImageNotFound:
        client.api.import_image_from_file(str(archive), repository=name, tag="latest")
    return name
