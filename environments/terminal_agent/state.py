"""What an agent leaves behind: the files of its working directory, carried from its sandbox to the one where tests run.

- Only files, directories and links travel: no process, no open file, nothing outside of the working directory.
- A link that leads to where tests, verdicts or other processes are is dropped: through it an agent could have what is expected
  compared with itself.
- The archive is read in the sandbox that takes it, never on the host.
"""

from __future__ import annotations

from agentrl.errors import EnvironmentFault
from environments.terminal_agent.places import LOGS, TESTS, VERDICTS, WORKDIR
from sandboxes.contract import ExecResult, Sandbox

MAX_MB = 15
"""Compressed; what a sandbox returns in one piece."""
TIMEOUT_S = 120.0
_ARCHIVE = "/tmp/state.tar.gz"

_MAX_UNPACKED = 256 << 20
_OUTGROWN, _ELSEWHERE = 3, 4
_PACK = f"""\
import gzip, io, os, sys, tarfile
room = {_MAX_UNPACKED}
if os.path.realpath(os.getcwd()) != "{WORKDIR}":
    sys.exit({_ELSEWHERE})
with gzip.GzipFile("", "wb", 1, sys.stdout.buffer) as pressed, tarfile.open(fileobj=pressed, mode="w|") as archive:
    for root, folders, files in os.walk("{WORKDIR}"):
        for name in sorted(folders + files):
            path = os.path.join(root, name)
            member = tarfile.TarInfo(os.path.relpath(path, "{WORKDIR}"))
            data = b""
            try:
                status = os.lstat(path)
                if os.path.islink(path):
                    member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
                elif os.path.isdir(path):
                    member.type = tarfile.DIRTYPE
                elif os.path.isfile(path):
                    if status.st_size > room:
                        sys.exit({_OUTGROWN})
                    with open(path, "rb") as file:
                        data = file.read(room)
                else:
                    continue
            except OSError:  # gone meanwhile, or closed to its owner
                continue
            room -= len(data)
            member.size, member.mode, member.mtime = len(data), status.st_mode & 0o777, int(status.st_mtime)
            archive.addfile(member, io.BytesIO(data))
"""
_UNPACK = f"""\
import os, sys, tarfile
os.makedirs("{VERDICTS}")
os.makedirs("{TESTS}")
links, dropped = [], 0
with tarfile.open("{_ARCHIVE}") as archive:
    for member in archive:
        path = os.path.join("{WORKDIR}", member.name)
        if os.path.isabs(member.name) or ".." in member.name.split("/"):
            continue
        if member.issym():
            links.append((member.linkname, path))
        elif member.isdir():
            os.makedirs(path, exist_ok=True)
        elif member.isreg():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                source = archive.extractfile(member)
                while piece := source.read(1 << 20):
                    file.write(piece)
            os.chmod(path, member.mode & 0o777 | 0o600)
            os.utime(path, (member.mtime, member.mtime))
# Last, so that no file is written through one.
for target, path in links:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target, path)
for target, path in links:
    leads = os.path.realpath(path)
    if leads.startswith(("/tmp", "/dev", "/proc", "/sys", "/run")):
        os.unlink(path)
        dropped += 1
os.unlink("{_ARCHIVE}")
print(dropped)
"""
_COPY_START = f"""\
import os, shutil, sys
source = {{source!a}}
if os.path.isdir(source) and os.path.realpath(source) != "{WORKDIR}":
    # One by one: the working directory itself belongs to root, and its mode and times stay as they are.
    for entry in os.scandir(source):
        target = os.path.join("{WORKDIR}", entry.name)
        if entry.is_dir(follow_symlinks=False):
            shutil.copytree(entry.path, target, symlinks=True)
        else:
            shutil.copy2(entry.path, target, follow_symlinks=False)
print(sum(os.lstat(os.path.join(root, name)).st_size for root, _, names in os.walk("{WORKDIR}") for name in names))
"""
_ENTRIES = f"""\
import os
print(sum(len(names) for _, _, names in os.walk("{LOGS}")))
"""


async def start_from_image(sandbox: Sandbox, workdir: str) -> None:
    """Fill the working directory with what the image keeps at ``workdir``; `EnvironmentFault` when it could not be carried."""
    result = await sandbox.run_python(_COPY_START.format(source=workdir), timeout=TIMEOUT_S)
    if result.exit_code != 0 or not result.stdout.strip().isdigit():
        raise EnvironmentFault(f"{workdir} of the image can't be copied to {WORKDIR}: {_complaint(result)}")
    if int(result.stdout) > MAX_MB << 20:
        raise EnvironmentFault(f"{workdir} of the image holds {int(result.stdout) >> 20} MB; at most {MAX_MB} can be carried")


async def leave(sandbox: Sandbox) -> bytes | None:
    """The working directory as an archive; None when it has outgrown `MAX_MB`."""
    result = await sandbox.run_python(_PACK, timeout=TIMEOUT_S, max_output=MAX_MB << 20)
    if result.truncated or result.exit_code == _OUTGROWN:
        return None
    if result.exit_code == _ELSEWHERE:
        raise EnvironmentFault(f"there is no {WORKDIR} without isolation: run terminal_agent in a sandbox")
    if result.exit_code != 0:
        raise EnvironmentFault(f"the working directory can't be packed: {_complaint(result)}")
    return result.stdout


async def wrote_verdicts(sandbox: Sandbox) -> bool:
    """Whether the agent wrote where only tests write: harmless, since its sandbox is gone by then, and worth to be told."""
    result = await sandbox.run_python(_ENTRIES, timeout=TIMEOUT_S)
    return result.exit_code == 0 and result.stdout.strip() != b"0"


async def arrive(sandbox: Sandbox, archive: bytes) -> int:
    """Unpack into a clean sandbox. Returns how many links were dropped."""
    await sandbox.write_file(_ARCHIVE, archive)
    result = await sandbox.run_python(_UNPACK, timeout=TIMEOUT_S)
    if result.exit_code != 0 or not result.stdout.strip().isdigit():
        raise EnvironmentFault(f"the working directory can't be unpacked for grading: {_complaint(result)}")
    return int(result.stdout)


def _complaint(result: ExecResult) -> str:
    return result.stderr.decode(errors="replace")[-300:].strip()
