"""What a run gets from the warm interpreter it is forked from: this list, and nothing else."""

from __future__ import annotations

import json

from sandboxes.contract import Sandbox
from sandboxes.self_check.expectations import expect, python

LOOK = """
import gc, json, os, resource, signal, sys, threading
status = dict(line.split(':', 1) for line in open('/proc/self/status') if ':' in line)
print(json.dumps({
    'descriptors': sorted(int(name) for name in os.listdir('/proc/self/fd'))[:-1],
    'ends': [os.readlink(f'/proc/self/fd/{number}').split(':')[0] for number in range(3)],
    'names': sorted(name for name in os.environ),
    'umask': os.umask(0o022),
    'blocked': sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    'ignored': int(status['SigIgn'], 16),
    'caught': int(status['SigCgt'], 16),
    'groups': os.getgroups(),
    'capabilities': [int(status[name], 16) for name in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb')],
    'session': os.getsid(0) == os.getpid(),
    'threads': threading.active_count(),
    'arguments': sys.argv,
    'original arguments': sys.orig_argv,
    'of ours': sorted(name for name in sys.modules if name.split('.')[0] == 'sandboxes'),
    'finders': [getattr(finder, '__module__', '') for finder in sys.meta_path],
    'requests': sum('sandbox-' in item for item in gc.get_objects() if type(item) is str),
    'core': resource.getrlimit(resource.RLIMIT_CORE),
    'collector': gc.isenabled(),
    'traced': [sys.gettrace() is None, sys.getprofile() is None],
}))
"""
NEEDLE = "needle-of-an-earlier-run"
SEARCH = """
import ctypes, re
def found(pattern):
    hits = 0
    for line in open('/proc/self/maps').read().splitlines():
        span, rights = line.split()[:2]
        if rights.startswith('rw') and '[v' not in line:
            start, end = (int(edge, 16) for edge in span.split('-'))
            hits += len(re.findall(pattern, ctypes.string_at(start, end - start)))
    return hits
mine = 'own-word'.upper()
print(found(b'[O]WN-WORD') > 0, found(b'[n]eedle-of-an-earlier-run'))
"""


async def a_run_inherits_what_is_listed(sandbox: Sandbox) -> None:
    seen = json.loads((await python(sandbox, LOOK)).stdout)
    expect(seen["descriptors"] == [0, 1, 2], "descriptors 0 to 2", seen)
    expect(seen["ends"] == ["/dev/null", "pipe", "pipe"], "no input, two pipes", seen)
    expect(set(seen["names"]) >= {"HOME", "LANG", "PATH", "PYTHONHASHSEED"}, "the environment", seen)
    expect(not any("AGENTRL" in name or "KEY" in name or "TOKEN" in name for name in seen["names"]), "nothing secret", seen)
    expect((seen["umask"], seen["blocked"], seen["groups"]) == (0o022, [], []) or seen["groups"] in ([], [65534]),
           "umask, signals, groups", seen)  # fmt: skip
    # Above 31 are signals of the C library's own.
    expect(seen["ignored"] & 0x7FFFFFFF == 0x1001000, "SIGPIPE and SIGXFSZ ignored, as in any Python", seen)
    expect(seen["caught"] & ~0x2 == 0, "no handler but that of SIGINT", seen)
    expect(seen["capabilities"] == [0, 0, 0, 0] and seen["session"], "no capability, a session of its own", seen)
    expect((seen["threads"], seen["arguments"], seen["original arguments"]) == (1, ["<code>"], ["python3"]), "one thread", seen)
    expect(not seen["of ours"] and "__main__" not in seen["finders"], "no module of ours", seen)
    expect(seen["core"] == [0, 0] and seen["collector"] and all(seen["traced"]), "limits, collector, no tracing", seen)
    await python(sandbox, f"word = {NEEDLE!r}\nprint(len(word))")
    result = await python(sandbox, SEARCH)
    expect(result.stdout == b"True 0\n", "its own words in its memory (the control) and none of an earlier run", result)


async def signals_keep_their_meaning(sandbox: Sandbox) -> None:
    result = await sandbox.exec("sleep 300 & kill $!; wait $!; echo $?", timeout=30)
    expect(result.stdout == b"143\n", "a command that SIGTERM ends", result)
    result = await sandbox.run_python("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", timeout=30)
    expect(result.exit_code == -15, "code that SIGTERM ends", result)
    result = await sandbox.run_python("import os, signal\nos.kill(os.getpid(), signal.SIGINT)", timeout=30)
    expect(b"KeyboardInterrupt" in result.stderr, "code that SIGINT interrupts", result)
