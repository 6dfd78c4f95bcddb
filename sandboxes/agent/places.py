"""The writable places of a sandbox and safe access to files in them.

Paths are walked component by component from a directory descriptor, as the workload's user, and never through a link: a
link that the workload planted leads nowhere. Only regular files are read and written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from sandboxes.agent import kernel


class Places:
    """Directories by the path under which the workload knows them; relative paths are below the first."""

    def __init__(self, descriptors: dict[str, int], identity: tuple[int, int] | None) -> None:
        self.descriptors = descriptors
        self._identity = identity

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self.descriptors.values():
            os.close(descriptor)

    @contextlib.contextmanager
    def as_workload(self) -> Iterator[None]:
        """Access files with the workload's rights."""
        if self._identity is None:
            yield
            return
        kernel.set_file_identity(*self._identity)
        try:
            yield
        finally:
            kernel.set_file_identity(0, 0)

    def write(self, path: str, data: bytes) -> None:
        """Create or replace a regular file; missing directories are made. A file that does not fit is removed."""
        with self.as_workload(), self._parent(path, create=True) as (parent, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o644, dir_fd=parent)
            try:
                _require_regular(descriptor, path)
                os.ftruncate(descriptor, 0)
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            except OSError:
                os.unlink(name, dir_fd=parent)
                raise
            finally:
                os.close(descriptor)

    def read(self, path: str, limit: int) -> bytes:
        """The bytes of a regular file; EFBIG when it has more than ``limit``."""
        with self.as_workload(), self._parent(path, create=False) as (parent, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
            try:
                _require_regular(descriptor, path)
                size = os.fstat(descriptor).st_size
                if size > limit:
                    raise OSError(errno.EFBIG, f"{size} bytes, limit {limit}", path)
                pieces = []
                while limit > 0 and (piece := os.read(descriptor, limit)):
                    pieces.append(piece)
                    limit -= len(piece)
                return b"".join(pieces)
            finally:
                os.close(descriptor)

    @contextlib.contextmanager
    def _parent(self, path: str, *, create: bool) -> Iterator[tuple[int, str]]:
        """A descriptor of the directory that holds ``path``, and the last component."""
        place, parts = self._split(path)
        current = os.dup(self.descriptors[place])
        try:
            for part in parts[:-1]:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=current)
                inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
                os.close(current)
                current = inner
            yield current, parts[-1]
        finally:
            os.close(current)

    def _split(self, path: str) -> tuple[str, list[str]]:
        place = next(iter(self.descriptors))
        if path.startswith("/"):
            owner = next((known for known in self.descriptors if path.startswith(known + "/")), None)
            if owner is None:
                raise PermissionError(errno.EACCES, f"only below {', '.join(self.descriptors)}", path)
            place, path = owner, path[len(owner) :]
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not parts:
            raise IsADirectoryError(errno.EISDIR, "names a directory", path)
        if ".." in parts:
            raise PermissionError(errno.EACCES, "'..' is not followed", path)
        return place, parts


def _require_regular(descriptor: int, path: str) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise PermissionError(errno.EACCES, "no regular file", path)


def wipe(root: int) -> None:
    """Remove what the calling identity may remove below a directory; the caller checks what is left.

    Directories are hoisted to the top before they are emptied: depth needs neither recursion nor long paths. Nothing may
    run as the workload's user meanwhile.
    """
    prefix = ".wipe-" + os.urandom(8).hex()
    hoisted = 0
    progress = True
    while progress:
        progress = False
        for name, is_directory in _entries(root):
            try:
                if is_directory:
                    hoisted = _empty(root, name, prefix, hoisted)
                    os.rmdir(name, dir_fd=root)
                else:
                    os.unlink(name, dir_fd=root)
                progress = True
            except OSError:
                continue


def _empty(root: int, name: str, prefix: str, hoisted: int) -> int:
    os.chmod(name, 0o700, dir_fd=root)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
    try:
        for child, is_directory in _entries(inner):
            if is_directory:
                hoisted += 1
                os.chmod(child, 0o700, dir_fd=inner)
                os.rename(child, f"{prefix}-{hoisted}", src_dir_fd=inner, dst_dir_fd=root)
            else:
                os.unlink(child, dir_fd=inner)
    finally:
        os.close(inner)
    return hoisted


def _entries(directory: int) -> list[tuple[str, bool]]:
    with os.scandir(directory) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
