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
from typing import Any

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

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Create or replace a regular file; missing directories are made. A file that does not fit is removed."""
        with self.as_workload(), self._parent(path, create=True) as (parent, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o600, dir_fd=parent)
            try:
                _require_regular(descriptor, path)
                os.fchmod(descriptor, mode & 0o777)
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

    def listing(self, path: str, limit: int) -> list[dict[str, Any]]:
        """Status of each entry of a directory, sorted by name; EFBIG when there are more than ``limit``."""
        with self.as_workload():
            directory = self._open_directory(path)
            try:
                names: list[str] = []
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if len(names) == limit:
                            raise OSError(errno.EFBIG, f"more than {limit} entries", path)
                        names.append(entry.name)
                found = [_status(name, directory) for name in sorted(names)]
                return [status for status in found if status is not None]
            finally:
                os.close(directory)

    def status(self, path: str) -> dict[str, Any]:
        """Of a file, a directory or a link itself."""
        with self.as_workload():
            if (place := self._place(path)) is not None:
                return {**_described(os.fstat(self.descriptors[place])), "name": place.rpartition("/")[2]}
            with self._parent(path, create=False) as (parent, name):
                return {**_described(os.lstat(name, dir_fd=parent)), "name": name}

    def _place(self, path: str) -> str | None:
        """The place that a path names as a whole."""
        inner = [part for part in path.split("/") if part not in ("", ".")]
        if not path.startswith("/"):
            return None if inner else next(iter(self.descriptors))
        whole = "/" + "/".join(inner)
        return whole if whole in self.descriptors else None

    def _open_directory(self, path: str) -> int:
        readable = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        if (place := self._place(path)) is not None:
            return os.open(".", readable, dir_fd=self.descriptors[place])
        with self._parent(path, create=False) as (parent, name):
            return os.open(name, readable, dir_fd=parent)

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


def populate(root: int, source: str) -> None:
    """Copy a tree of directories, regular files and links into an empty directory, with modes and times."""
    directories = []
    for path, names, files, inner in os.fwalk(source):
        below = os.path.relpath(path, source)
        for name in names + files:
            status = os.lstat(name, dir_fd=inner)
            target = os.path.join(below, name)
            if stat.S_ISLNK(status.st_mode):
                os.symlink(os.readlink(name, dir_fd=inner), target, dir_fd=root)
            elif stat.S_ISDIR(status.st_mode):
                os.mkdir(target, 0o700, dir_fd=root)
                directories.append((target, status))
            elif stat.S_ISREG(status.st_mode):
                _copy(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=inner), target, root, status)
    for target, status in reversed(directories):
        os.chmod(target, stat.S_IMODE(status.st_mode), dir_fd=root)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=root)


def _copy(source: int, target: str, root: int, status: os.stat_result) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    copy = os.open(target, flags, 0o600, dir_fd=root)
    try:
        while os.sendfile(copy, source, None, 1 << 24):
            pass
        os.fchmod(copy, stat.S_IMODE(status.st_mode))
        os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(copy)
        os.close(source)


def _status(name: str, directory: int) -> dict[str, Any] | None:
    try:
        return {**_described(os.lstat(name, dir_fd=directory)), "name": name}
    except FileNotFoundError:
        return None  # gone meanwhile


def _described(status: os.stat_result) -> dict[str, Any]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(status.st_mode), "other")
    return {"kind": kind, "size": status.st_size, "mode": stat.S_IMODE(status.st_mode), "modified": status.st_mtime}


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
