"""Files of a sandbox seen from outside: below the places, through no link, regular only."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from sandboxes.agent.places import Places, wipe


@pytest.fixture
def places(tmp_path: Path) -> Places:
    for name in ("work", "temporary", "outside"):
        (tmp_path / name).mkdir()
    return Places(
        {
            "/workspace": os.open(tmp_path / "work", os.O_RDONLY),
            "/tmp": os.open(tmp_path / "temporary", os.O_RDONLY),
        },
        identity=None,
    )


def test_write__makes_directories_and_replaces(places: Places, tmp_path: Path) -> None:
    places.write("a/b/c", b"long content")
    places.write("/workspace/a/b/c", b"short")
    places.write("/tmp/./x", b"\x00\xff")
    assert (tmp_path / "work/a/b/c").read_bytes() == b"short"
    assert (tmp_path / "temporary/x").read_bytes() == b"\x00\xff"
    assert places.read("a//b/c", 5) == b"short"


@pytest.mark.parametrize("path", ["/etc/passwd", "/workspace", "", "/", "a/../../outside/x", "..", "/tmpx/y", "/workspacex"])
def test_path_outside__is_refused(places: Places, path: str) -> None:
    with pytest.raises((PermissionError, IsADirectoryError)):
        places.write(path, b"planted")
    with pytest.raises((PermissionError, IsADirectoryError)):
        places.read(path, 10)


def test_links__lead_nowhere(places: Places, tmp_path: Path) -> None:
    secret = tmp_path / "outside/secret"
    secret.write_text("secret")
    (tmp_path / "work/file").symlink_to(secret)
    (tmp_path / "work/directory").symlink_to(tmp_path / "outside")
    for path in ("file", "directory/secret", "directory/new"):
        with pytest.raises(OSError):
            places.read(path, 100)
        with pytest.raises(OSError):
            places.write(path, b"planted")
    assert secret.read_text() == "secret"
    assert os.listdir(tmp_path / "outside") == ["secret"]


def test_special_files__are_refused_at_once(places: Places, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "work/fifo")
    (tmp_path / "work/directory").mkdir()
    with pytest.raises(OSError):
        places.read("fifo", 10)
    with pytest.raises(OSError):
        places.write("fifo", b"x")
    with pytest.raises(IsADirectoryError):
        places.read("directory", 10)


def test_read_beyond_the_limit__is_told_not_cut(places: Places, tmp_path: Path) -> None:
    (tmp_path / "work/sparse").touch()
    os.truncate(tmp_path / "work/sparse", 1 << 40)
    with pytest.raises(OSError) as refused:
        places.read("sparse", 1000)
    assert refused.value.errno == errno.EFBIG


def test_descriptors__are_not_leaked(places: Places) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a/b", "/tmp/c", "missing/..", "a"):
        for act in (lambda path: places.write(path, b"x"), lambda path: places.read(path, 10)):
            try:
                act(path)
            except OSError:
                continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_wipe_of_a_hostile_tree__leaves_nothing_and_follows_no_link(places: Places, tmp_path: Path) -> None:
    outside = tmp_path / "outside/kept"
    outside.write_text("kept")
    root = places.descriptors["/workspace"]
    current = os.dup(root)
    for level in range(1500):  # deeper than any path or recursion limit
        os.mkdir("d", dir_fd=current)
        inner = os.open("d", os.O_RDONLY, dir_fd=current)
        if level % 100 == 0:
            Path(f"/proc/self/fd/{current}/file\udcff\n").touch()
        os.close(current)
        current = inner
    os.close(current)
    (tmp_path / "work/link").symlink_to(tmp_path / "outside")
    (tmp_path / "work/closed").mkdir()
    (tmp_path / "work/closed/inner").mkdir()
    (tmp_path / "work/closed").chmod(0)
    wipe(root)
    assert os.listdir(root) == []
    assert outside.read_text() == "kept"
