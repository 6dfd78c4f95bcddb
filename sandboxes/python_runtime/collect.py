"""Copies the running Python into a folder that works anywhere: interpreter, standard library, shared libraries, loader.

Started as ``FOLDER/ld.so --library-path FOLDER/lib FOLDER/bin/python3`` it needs nothing of the system around it.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig

_PT_INTERP = 3
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "config-*", "*-packages"
)


def loader_of(program: str) -> str:
    """The loader that an ELF program names."""
    with open(program, "rb") as file:
        head = file.read(1 << 16)
    (table,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    for number in range(count):
        kind, _, offset, _, _, length = struct.unpack_from("<IIQQQQ", head, table + number * size)
        if kind == _PT_INTERP:
            return head[offset : offset + length].rstrip(b"\0").decode()
    raise SystemExit(f"{program} names no loader: it can't be copied")


def libraries_of(loader: str, program: str) -> set[str]:
    """Files of the shared libraries that a program or library needs."""
    listed = subprocess.run([loader, "--list", program], capture_output=True, text=True)
    return set(re.findall(r"=> (/\S+)", listed.stdout))


def main(folder: str) -> None:
    """Fill ``folder``."""
    python = os.path.realpath(sys.executable)
    loader = loader_of(python)
    standard = sysconfig.get_path("stdlib")
    os.makedirs(f"{folder}/bin")
    copied = f"{folder}/lib/{os.path.basename(standard)}"
    shutil.copytree(standard, copied, ignore=_LEFT_OUT)
    shutil.copy(python, f"{folder}/bin/python3")
    shutil.copy(os.path.realpath(loader), f"{folder}/ld.so")
    modules = [f"{standard}/lib-dynload/{name}" for name in os.listdir(f"{standard}/lib-dynload") if name.endswith(".so")]
    for library in set().union(*(libraries_of(loader, program) for program in [python, *modules])):
        shutil.copy(os.path.realpath(library), f"{folder}/lib/{os.path.basename(library)}")


if __name__ == "__main__":
    main(sys.argv[1])
