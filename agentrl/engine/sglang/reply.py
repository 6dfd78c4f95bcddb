"""A server's answer to a request, checked before anything is believed.

Invariants, each a test of this name:
- ``one_length``: as many log-probs and versions as ids, each log-prob finite and of the id beside it; as many ids as the server
  counted, each of the vocabulary.
- ``version_truth``: each token has the version that the server names for it, and only versions that this run loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl.engine.sglang.naming import WeightNames
from agentrl.errors import BrokenDistribution, WrongAnswer
from agentrl.types import FinishReason

FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


class ForeignWeights(WrongAnswer):
    """Tokens of weights that this run did not load: the server restarted, or someone else loads into it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Arrays as in `agentrl.engine.contract.Generation`; seconds by the server's clock."""

    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish_reason: FinishReason
    why: str
    """Of the end, in the server's words where it has some."""
    text: str | None
    """What the server decoded them to; None where it holds no tokenizer."""
    cached_tokens: int
    retractions: int
    queue_s: float
    total_s: float


def parse_reply(reply: Mapping[str, Any], names: WeightNames, n_vocabulary: int, where: str) -> Reply:
    """`WrongAnswer` says what is wrong; `ForeignWeights` is one of these. `BrokenDistribution` for a log-prob that is none."""
    try:
        meta = reply["meta_info"]
        rows = meta.get("output_token_logprobs") or []
        ids = np.array(reply["output_ids"], dtype=np.int32).reshape(-1)
        finish, why = _finish(meta["finish_reason"])
        versions = _versions(meta, len(ids), names, where)
        seconds = float(meta.get("queue_time") or 0.0), float(meta["e2e_latency"])
        counts = int(meta.get("cached_tokens") or 0), int(meta.get("num_retractions") or 0)
        counted = int(meta.get("completion_tokens", len(ids)))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WrongAnswer(f"{where}: the answer is malformed: {error!r}") from error
    if counted != len(ids):
        raise WrongAnswer(f"{where}: {len(ids)} ids, but the server counted {counted}")
    foreign = (ids < 0) | (ids >= n_vocabulary)
    if foreign.any():
        raise WrongAnswer(f"{where}: id {ids[foreign.argmax()]} is outside of [0, {n_vocabulary})")
    text = reply.get("text") if isinstance(reply.get("text"), str) else None
    return Reply(ids, _logprobs(rows, ids, where), versions, finish, why, text, *counts, *seconds)


def _finish(said: Mapping[str, Any]) -> tuple[FinishReason, str]:
    kind = said["type"]
    return FINISH[kind], f"{kind}: {said['message']:.300}" if said.get("message") else kind


def _logprobs(rows: Any, ids: np.ndarray, where: str) -> np.ndarray:
    if len(rows) != len(ids):
        raise WrongAnswer(f"{where}: {len(rows)} log-probs for {len(ids)} tokens")
    try:
        values = np.array([np.nan if row[0] is None else row[0] for row in rows], dtype=np.float32)
        named = np.array([row[1] for row in rows], dtype=np.int64)
    except (TypeError, ValueError, IndexError) as error:
        raise WrongAnswer(f"{where}: the log-probs are malformed: {error!r}") from error
    if (named != ids).any():
        at = int((named != ids).argmax())
        raise WrongAnswer(f"{where}: the log-prob of token {at} is of id {named[at]}, the token is {ids[at]}")
    broken = ~np.isfinite(values)
    if broken.any():
        raise BrokenDistribution(
            f"{where}: the log-prob of token {int(broken.argmax())} is {rows[int(broken.argmax())][0]}, not finite"
        )
    return values


def _versions(meta: Mapping[str, Any], n: int, names: WeightNames, where: str) -> np.ndarray:
    versions = np.full(n, -1, dtype=np.int32)
    for span in meta["weight_versions"] if n else ():
        version = names.version(str(span["version"]))
        if version is None:
            raise ForeignWeights(f"{where}: tokens were sampled with weights {span['version']!r}, which this run did not load")
        versions[int(span["start"]) : int(span["end"])] = version
    if (versions < 0).any():
        raise WrongAnswer(f"{where}: token {int((versions < 0).argmax())} of {n} has no version: {meta['weight_versions']}")
    if (np.diff(versions) < 0).any():
        raise WrongAnswer(f"{where}: the versions decrease within one answer: {meta['weight_versions']}")
    return versions
