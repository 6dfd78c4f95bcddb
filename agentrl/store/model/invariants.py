"""What must hold, and the words in which a broken one is reported."""

from __future__ import annotations

from enum import StrEnum

from agentrl.store.model.rules import Rules
from agentrl.store.model.state import OUTSTANDING, State


class Invariant(StrEnum):
    """Each value is the sentence that a configuration prints when the invariant is broken."""

    ADMISSION = "more trajectories outstanding than the admission bound when something opened"
    ADMISSION_STATE = "more trajectories outstanding than the admission bound after a resume"
    NO_WASTE = "data dropped as stale although nothing failed"
    FAIR_CHARGE = "an attempt charged to an item whose trainer was only fenced out, or never heard of its claim"
    OUTAGE = "an attempt charged although no process failed: the database was down"
    CONSERVATION = "the live ledger and the consumed rows differ, or an item is in no live place"
    WHOLE_GROUPS = "an incomplete group in ready or in a claim"
    EXACTLY_ONCE = "an item trained twice in the live weights"
    LAG = "an item trained with a lag above the bound, or with no token left in range"
    LEDGER = "weights in the trainer's memory that the live ledger does not know were committed"
    VERSION_TRUTH = "a version named or published for weights that the live ledger does not know"
    VERSION_ORDER = "a published version whose name does not grow"
    CHECKPOINT_TRUTH = "a checkpoint row for steps that the live ledger does not know"
    CHECKPOINT_FILE = "the file of a live checkpoint overwritten by a trainer that was fenced out"
    RESUME = "a resume from a checkpoint of abandoned steps"
    TOKEN_REFUSED = "a valid token of an abandoned branch refused as one of the future"
    CONTENT = "an item that can still be trained whose turns were removed"
    RETAINED = "an item lost to retention although the newest checkpoint was resumed from"
    DEAD_LOCK = "dead-lock: a state from which nothing that works finishes the data set"
    LIVE_LOCK = "live-lock: moves that can go round for ever without a fault"


def broken_in(state: State, rules: Rules) -> Invariant | None:
    """The first invariant of a single state that does not hold."""
    places = [slot.place for slot in state.slots]
    for first in range(0, len(places), rules.seats):
        members = places[first : first + rules.seats]
        if "ready" in members and (members.count("ready"), members.count("dropped")) != (rules.group, rules.extra):
            return Invariant.WHOLE_GROUPS
    if any(slot.gone and slot.place in OUTSTANDING for slot in state.slots):
        return Invariant.CONTENT
    trained = sorted(i for _, items in state.ledger for i in items)
    if trained != [i for i, place in enumerate(places) if place == "consumed"] or "marked" in places:
        return Invariant.CONSERVATION
    return None


def finished(state: State, rules: Rules) -> bool:
    """The data set is used up: nothing is left that could still make a batch."""
    places = [slot.place for slot in state.slots]
    return all(p in ("consumed", "dropped", "marked", "ready") for p in places) and places.count("ready") < rules.enough
