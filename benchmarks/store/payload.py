"""Trajectories like those of a coding agent: real text, ids of its pieces, 35 % of the tokens sampled by the policy."""

from __future__ import annotations

import re
import sysconfig
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from agentrl.types import FinishReason, Segment

TOKENS = 32_000
TURNS = 30
ACTION_SHARE = 0.35
VOCABULARY = 151_936
_SOURCES = ("argparse.py", "inspect.py", "typing.py", "tarfile.py", "subprocess.py", "datetime.py", "doctest.py", "pickle.py")
_PIECE = re.compile(r" ?[A-Za-z]{1,7}|\d|[^\w\s]|\s+|_|\w")


@cache
def _pieces() -> tuple[Sequence[str], np.ndarray]:
    """Word pieces of the standard library's source and their ids."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = "".join((folder / name).read_text(encoding="utf-8") for name in _SOURCES)
    pieces = _PIECE.findall(text.encode("ascii", "ignore").decode())
    return pieces, np.array([zlib.crc32(p.encode()) % VOCABULARY for p in pieces], np.int32)


def trajectory(seed: int, tokens: int = TOKENS, turns: int = TURNS, version: int = 0) -> list[Segment]:
    """The turns of one trajectory; another seed gives other text and other log-probs."""
    return [segment(seed, i, tokens // turns, version) for i in range(turns)]


def segment(seed: int, index: int, tokens: int, version: int = 0) -> Segment:
    """One turn of ``tokens`` tokens."""
    pieces, ids = _pieces()
    rng = np.random.default_rng((seed, index))
    start = int(rng.integers(len(pieces) - tokens))
    n_act = max(1, round(tokens * ACTION_SHARE))
    middle, end = start + tokens - n_act, start + tokens
    return Segment(
        index=index,
        observation=ids[start:middle],
        action=ids[middle:end],
        logprobs=np.log(rng.beta(8.0, 1.0, n_act)).astype(np.float32),
        versions=np.full(n_act, version, np.int32),
        finish_reason=FinishReason.STOP,
        observation_text="".join(pieces[start:middle]),
        action_text="".join(pieces[middle:end]),
    )


def raw_bytes(segments: Sequence[Segment]) -> int:
    """Bytes of what a segment carries: ids, log-probs, versions and texts."""
    return sum(
        s.observation.nbytes
        + s.action.nbytes
        + s.logprobs.nbytes
        + s.versions.nbytes
        + len(s.observation_text.encode())
        + len(s.action_text.encode())
        for s in segments
    )
