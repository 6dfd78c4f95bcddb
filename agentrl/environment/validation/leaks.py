"""Gold text where the policy could read it: in the prompt, in the tools' descriptions, or in the sandbox that it acts in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl.environment.base import Environment
from agentrl.environment.boxes import boxes_of
from agentrl.environment.turn import begin, first_messages
from agentrl.tokens.tool_calls import parse
from agentrl.types import Json, Task
from sandboxes.contract import Sandbox
from sandboxes.lazy import SandboxQueue

SHORTEST = 12
"""Gold text of fewer characters is no evidence: a file's name, or a number, may stand in a prompt for good reasons."""
SEARCH_S = 60.0

# Reads every file that a task could have brought along, and all that git knows, reachable or not.
_SEARCH = """\
import json, os, subprocess, sys
texts, roots = json.loads({texts!a}), json.loads({roots!a})
needles = [text.encode() for text in texts]
skipped = {{"proc", "sys", "dev", "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "run", "boot", "etc"}}
found = []
def look(path, data):
    found.extend([path, text] for text, needle in zip(texts, needles) if needle in data)
def search(root):
    for folder, folders, files in os.walk(root):
        if folder == "/":
            folders[:] = [name for name in folders if name not in skipped]
        folders[:] = [name for name in folders if name not in ("site-packages", "dist-packages")]
        if "objects" in folders and "HEAD" in files:
            git = ["git", "--git-dir", folder, "-c", "safe.directory=*"]
            try:
                names = subprocess.run([*git, "cat-file", "--batch-all-objects", "--batch-check"], capture_output=True).stdout
                names = b"".join(line.split()[0] + b"\\n" for line in names.splitlines() if line)
                look(folder + " (git)", subprocess.run([*git, "cat-file", "--batch"], input=names, capture_output=True).stdout)
            except OSError:
                pass
        for name in files:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 16 << 20:
                    with open(path, "rb") as file:
                        look(path, file.read())
            except OSError:
                pass
for root in roots:
    search(root)
print(json.dumps(found[:20]))
"""


def gold_texts(turns: Sequence[str]) -> list[str]:
    """What gives a solution away: the argument texts of its calls, and what it says besides, if long enough."""
    texts: list[str] = []
    for turn in turns:
        parsed = parse(turn)
        texts += [parsed.content, *(text for call in parsed.calls for text in _strings(call.arguments))]
    return list(dict.fromkeys(text.strip() for text in texts if len(text.strip()) >= SHORTEST))


def leaks_in_prompt(environment: Environment, task: Task, texts: Sequence[str]) -> list[str]:
    """Those of ``texts`` that the first messages or the tools' declarations contain."""
    shown = "\n".join(message.content for message in first_messages(environment, task))
    shown += "".join(_strings_joined(schema) for schema in environment.tool_schemas())
    return [text for text in texts if text in shown]


async def leaks_in_sandboxes(
    environment: Environment, task: Task, texts: Sequence[str], queue: SandboxQueue | None, roots: Sequence[str] = ("/",)
) -> list[str]:
    """Places in the sandboxes of an episode, as they are before its first turn, that contain one of ``texts``."""
    async with boxes_of(environment, task, queue) as boxes:
        await begin(environment, task, sandbox=boxes.main, sandboxes=boxes.others)
        named = {"": boxes.main, **boxes.others}
        return [
            f"{name}{':' if name else ''}{place}"
            for name, box in named.items()
            if box is not None
            for place in await _search(box, texts, roots)
        ]


async def _search(sandbox: Sandbox, texts: Sequence[str], roots: Sequence[str]) -> list[str]:
    program = _SEARCH.format(texts=json.dumps(list(texts)), roots=json.dumps([*roots, "."]))
    result = await sandbox.run_python(program, timeout=SEARCH_S)
    if result.exit_code != 0:
        said = result.stderr.decode("utf-8", "replace")[-200:]
        raise TimeoutError(f"the search of the sandbox did not finish within {SEARCH_S:g} s" if result.timed_out else said)
    return sorted({path for path, _ in json.loads(result.stdout)})


def _strings(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _strings_joined(value: Any) -> str:
    return "".join(f"\n{text}" for text in _strings(value))
