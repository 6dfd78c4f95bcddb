"""A trajectory token by token: what was sampled, what of it is in the loss, and what the trainer made of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer

from agentrl.store.evidence import LastTraining
from agentrl.types import StoredTrajectory

PAGE = 4000
"""Tokens of one page."""

Kind = Literal["observation", "trains", "masked", "too_old"]


@dataclass(frozen=True, slots=True)
class Token:
    """``text`` is None where no tokenizer is at hand, and for a token that is no text by itself.

    ``numbers``: what is known of an action token, by name.
    """

    id: int
    text: str | None
    kind: Kind
    segment: int
    first: bool
    """Whether a segment begins with it."""
    unit: bool
    """Whether a unit of credit begins with it."""
    numbers: dict[str, float]


@dataclass(frozen=True, slots=True)
class Sums:
    """Action tokens by what becomes of them in the loss: ``sampled`` is the sum of the other three."""

    observation: int
    sampled: int
    trains: int
    masked: int
    too_old: int


def sums(stored: StoredTrajectory, training: LastTraining | None) -> Sums:
    """Counts over the whole trajectory."""
    kinds = [kind for segment in _kinds(stored, training) for kind in segment]
    return Sums(
        sum(s.n_obs for s in stored.segments), len(kinds), kinds.count("trains"), kinds.count("masked"), kinds.count("too_old")
    )


def tokens(stored: StoredTrajectory, training: LastTraining | None, tokenizer: Tokenizer | None, start: int) -> list[Token]:
    """`PAGE` tokens from position ``start`` of the trajectory on."""
    known = {} if training is None else _known(training)
    found: list[Token] = []
    position = actions = 0
    for segment, kinds in zip(stored.segments, _kinds(stored, training), strict=True):
        ids = [*segment.observation.tolist(), *segment.action.tolist()]
        for i in range(max(0, start - position), min(len(ids), start + PAGE - position)):
            at = i - segment.n_obs
            numbers: dict[str, float] = {}
            if at >= 0:
                numbers = {"log-prob": float(segment.logprobs[at])}
                numbers |= {name: float(array[actions + at]) for name, array in known.items() if actions + at < len(array)}
                numbers["version"] = int(segment.versions[at])
            unit = at >= 0 and ((segment.unit_starts is not None and bool(segment.unit_starts[at])) or at == 0)
            text = None if tokenizer is None else _text(tokenizer, ids[i])
            found.append(Token(ids[i], text, kinds[at] if at >= 0 else "observation", segment.index, i == 0, unit, numbers))
        position += len(ids)
        actions += segment.n_act
    return found


def _text(tokenizer: Tokenizer, token: int) -> str | None:
    decoded = tokenizer.decode([token], skip_special_tokens=False) if token >= 0 else ""
    return None if not decoded or "\ufffd" in decoded else decoded


def _known(training: LastTraining) -> dict[str, np.ndarray]:
    trained = training.trained
    arrays = {
        "training log-prob": trained.logprobs,
        "value": trained.values,
        "advantage": trained.advantages,
        "return": trained.returns,
    }
    return {name: array for name, array in arrays.items() if array is not None}


def _kinds(stored: StoredTrajectory, training: LastTraining | None) -> Iterator[list[Kind]]:
    old = set() if training is None else set(training.masked_versions)
    for segment in stored.segments:
        mask = [1] * segment.n_act if segment.loss_mask is None else segment.loss_mask.tolist()
        yield [
            "masked" if not trains else "too_old" if version in old else "trains"
            for trains, version in zip(mask, segment.versions.tolist(), strict=True)
        ]


def tokenizer_of(model: Path) -> Tokenizer | None:
    """The tokenizer of a model folder; None when it can't be read on this machine."""
    try:
        return _tokenizer(model / "tokenizer.json")
    except Exception:  # the library raises nothing more special
        return None


@lru_cache(maxsize=8)
def _tokenizer(file: Path) -> Tokenizer:
    return Tokenizer.from_file(str(file))
