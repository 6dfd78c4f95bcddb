"""The last steps of a forked child: from the warm interpreter to the workload's code.

What the child keeps: descriptors 0 to 2, the interpreter's loaded standard modules, the environment it is given, a umask of
022, no blocked signals, and ignored SIGPIPE and SIGXFSZ as in any Python. Rights and descriptors are gone before the request
is even read. The self-check ``a_run_inherits_what_is_listed`` compares all of it.

Each object touched here costs the child a page fault and a copy, some microseconds a piece and half of a short command's
time in all: hence marshal, plain descriptors, and nothing that the zygote can do once.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import atexit
import linecache
import marshal
import os
import resource
import struct
import sys
import traceback
import types
from typing import Any, NoReturn

from sandboxes.agent.settings import Settings

CODE_NAME = "<code>"
_REQUEST, _HIGHEST = 3, 1024
_LENGTH = struct.Struct(">I")


def encode_request(fields: dict[str, Any], body: bytes) -> bytes:
    """What the child reads from its memory file: how to start, then code or standard input."""
    text = marshal.dumps(fields)
    return _LENGTH.pack(len(text)) + text + body


def become_command(settings: Settings, request: int, stdout: int, stderr: int) -> NoReturn:
    """Give up every right, then run the request."""
    try:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.dup2(request, _REQUEST)
        os.closerange(_REQUEST + 1, _HIGHEST)
        _give_up_rights(settings)
        (length,) = _LENGTH.unpack(os.read(_REQUEST, _LENGTH.size))
        fields = marshal.loads(os.read(_REQUEST, length))
        if not _enter(settings.real_path(settings.workdir)) or not _enter(settings.real_path(fields["cwd"] or "")):
            os._exit(126)
        environment = {**settings.environment, **fields["env"]}
        if fields["argv"] is None:
            for name, value in environment.items():
                os.environ[name] = value
            status = _run_code()
        else:
            _execute(fields["argv"], {**os.environ, **environment}, fields["stdin"])
            status = 126
        os._exit(status)
    finally:
        os._exit(125)


def _give_up_rights(settings: Settings) -> None:
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(score, b"1000")
    os.close(score)
    for number, limit in settings.limits.items():
        _, hard = resource.getrlimit(number)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(number, (limit, limit))
    if settings.identity is not None:
        uid, gid = settings.identity
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _enter(directory: str) -> bool:
    """Make a directory the current one, if one is named; the reason why not is on standard error."""
    try:
        if directory:
            os.chdir(directory)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        os.write(2, f"cannot start in {directory!r:.200}: {reason}\n".encode("utf-8", "replace"))
        return False
    return True


def _execute(argv: list[str], environment: dict[str, str], has_stdin: bool) -> None:
    """Become another program; returns only when that fails, with the reason on standard error."""
    if has_stdin:
        os.dup2(_REQUEST, 0)
    os.close(_REQUEST)
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGINT):
        _signal.signal(number, _signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)
    except (FileNotFoundError, NotADirectoryError):
        os.write(2, f"{argv[0]}: command not found\n".encode("utf-8", "replace"))
        os._exit(127)
    except (OSError, ValueError) as error:
        os.write(2, f"cannot execute {argv[0]!r:.200}: {error}\n".encode("utf-8", "replace"))


def _run_code() -> int:
    """Run the request's body as ``__main__``, with the interpreter's own ways of ending. Returns the exit code."""
    code = os.read(_REQUEST, os.fstat(_REQUEST).st_size)
    os.close(_REQUEST)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.path.insert(0, "")
    sys.argv[:] = [CODE_NAME]
    lines = code.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[CODE_NAME] = (len(code), None, lines, CODE_NAME)
    status = _outcome_of(code, main.__dict__)
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        status = status or 120
    return status & 255


def _outcome_of(code: bytes, namespace: dict[str, Any]) -> int:
    try:
        exec(compile(code, CODE_NAME, "exec", dont_inherit=True), namespace)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        own_frame = error.__traceback__
        traceback.print_exception(type(error), error, own_frame and own_frame.tb_next)
        return 1
    return 0
