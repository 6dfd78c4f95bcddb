"""Removal of images that were prepared by ``setup`` and have not been used for long.

When one was used last is written on this host, as the time of its lock file; what was never used here counts from its creation.
An image that a container stands on stays: the daemon refuses its removal.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from dataclasses import dataclass
from datetime import datetime

import docker
import docker.errors
from docker.models.images import Image

from sandboxes.prepare import PREPARED_LABEL, lock_file

_IN_USE = 409


@dataclass(frozen=True)
class PreparedImage:
    """``unused_s``: since it was last started from. ``removed``: whether it is gone now; ``why_not`` says why not."""

    name: str
    size: int
    unused_s: float
    removed: bool = False
    why_not: str = ""


def prune(client: docker.DockerClient, unused_for_s: float, *, dry_run: bool = False) -> list[PreparedImage]:
    """All prepared images of a daemon; those unused for so many seconds are removed unless ``dry_run``.

    Blocking; raises the SDK's errors.
    """
    return [
        _pruned(client, image, unused_for_s, dry_run)
        for image in sorted(client.images.list(filters={"label": PREPARED_LABEL}), key=lambda image: str(image.tags))
    ]


def _pruned(client: docker.DockerClient, image: Image, unused_for_s: float, dry_run: bool) -> PreparedImage:
    lock = lock_file(image.labels[PREPARED_LABEL])
    created = datetime.fromisoformat(image.attrs["Created"][:19] + "+00:00")
    used = lock.stat().st_mtime if lock.exists() else created.timestamp()
    name = image.tags[0] if image.tags else image.short_id
    found = PreparedImage(name, int(image.attrs["Size"]), time.time() - used)
    if found.unused_s < unused_for_s:
        return PreparedImage(name, found.size, found.unused_s, why_not="used lately")
    if dry_run:
        return PreparedImage(name, found.size, found.unused_s, why_not="only looked at")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            client.images.remove(name)
        except BlockingIOError:
            return PreparedImage(name, found.size, found.unused_s, why_not="being prepared")
        except docker.errors.APIError as error:
            if error.status_code != _IN_USE:
                raise
            return PreparedImage(name, found.size, found.unused_s, why_not="in use")
        with contextlib.suppress(FileNotFoundError):
            lock.unlink()
    return PreparedImage(name, found.size, found.unused_s, removed=True)
