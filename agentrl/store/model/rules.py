"""The rules a configuration plays by: sizes, what may go wrong, and one switch per question that the protocol answers.

The default of a switch is the protocol as the store implements it. Any other value is a *reading*: another answer that looks
just as good at first sight. `agentrl.store.model.configurations` has for each a configuration that shows where it goes wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Rules:
    """What one search explores."""

    # sizes ------------------------------------------------------------------------------------------------------------
    lag_bound: int = 0
    batch: int = 1
    """Most trajectories of a step; a multiple of ``group``."""
    batch_min: int | None = None
    """Fewest trajectories of a step. None: as many as ``batch``."""
    ahead: int | None = None
    """Batches that may be outstanding beside the one in hand. None: as many as ``lag_bound``."""
    group: int = 1
    extra: int = 0
    """Redundant seats of each group: the first ``group`` graded members close it."""
    oversample: int | None = None
    """Trajectories that may be outstanding beside one batch. None: as many as the lag bound admits."""
    slots: int = 2
    """Group seats of the whole data set, redundant ones included, in the order of the task cursor."""
    workers: int = 2
    turns: int = 1
    checkpoint_every: int = 1
    max_attempts: int = 2
    max_lease_attempts: int = 2

    # the world --------------------------------------------------------------------------------------------------------
    faults: int = 0
    """How many things may go wrong: a crash, a stall past a lease, a lost reply, an unreadable file, age, a stop ..."""
    transport: Literal["pull", "push"] = "pull"
    """Engines load the newest version themselves, or the trainer pushes to them."""
    grading: Literal["episode", "worker"] = "episode"
    """The reward comes with the completion, or from a reward worker that takes a grade job."""
    poison: bool = False
    """Every update over slot 0 kills the trainer (out of memory); no fault is spent on it."""
    outage: bool = False
    """A fault: the database is down for longer than a lease."""
    staleness: Literal["trajectory", "segment_mask"] = "trajectory"
    """An item is in range while its oldest token is, or while each member's newest one is: older tokens don't train."""
    deadly: bool = False
    """Every worker that has written a turn of slot 0 dies; no fault is spent on it."""
    deadline: bool = False
    """A fault: a group is still open after its deadline."""
    retention: bool = False
    """Somebody may remove what is old, at any time; every ended trajectory is."""
    late_checkpoints: bool = False
    """Checkpoints are written while the trainer goes on: a row may come after later steps."""

    # admission --------------------------------------------------------------------------------------------------------
    admission: Literal["after", "before"] = "after"
    """The sum that must stay within the bound includes what is about to open; ``before``: it is tested as it was."""
    admission_batch: Literal["min", "max"] = "min"
    """Without ``ahead``, the bound counts smallest batches, which is what an update surely takes; ``max``: largest ones."""
    count_unpublished: bool = True
    """Committed steps that the asking engine has not loaded use capacity; False: a commit frees it at once."""
    open_lock: bool = True
    """Opening holds the run's admission lock; False: two opens may count the same free places."""
    group_open: Literal["seats", "whole"] = "seats"
    """A group opens seat by seat over several calls; ``whole``: one call must have room for all (a call asks for one here)."""
    bound: Literal["open", "state"] = "open"
    """The bound limits opening; ``state``: it is taken for an invariant of every state."""
    expired: Literal["retry", "park"] = "retry"
    """An expired live row is dropped and retried; ``park``: with a stored turn it is left to whoever continues it."""
    parked_needs_room: bool = False
    """With ``park``: continuing needs free capacity, although the row holds its place."""
    parked_charged: bool = True
    """With ``park``: a worker that died costs the episode an attempt, as a retry does."""
    deadline_ends: Literal["group", "members", "waiting"] = "group"
    """A group past its deadline is given up whole; ``members``: its empty seats are still served; ``waiting``: only those go
    that wait for the others."""
    redundant_seats: Literal["free", "counted"] = "free"
    """A group needs room for the members that will be trained; ``counted``: for each of its seats."""

    # fences, leases, locks --------------------------------------------------------------------------------------------
    claim_fenced: bool = True
    """A claim checks the trainer fence; False: only what writes the ledger, checkpoints and versions does."""
    forgotten: Literal["returned", "lapses"] = "returned"
    """What a claim leased whose reply was lost goes back with the next claim; ``lapses``: it is left to lapse."""
    fence_lock: bool = True
    """A fence check holds the run row until its commit; False: check and write are two steps."""
    ready_lock: bool = True
    """An insert into ready holds the run row; False: reading the live history and inserting are two steps."""
    restart: Literal["if_lapsed", "always"] = "if_lapsed"
    """A start waits until the holder's lease lapses; ``always``: whoever was refused starts again and takes the fence."""
    charge_dead_trainer: bool = True
    """A lease whose trainer died in its update is charged when it returns; False: a start charges nothing."""
    error_releases: bool = False
    """True: a trainer that fails inside its update releases its leases like one that was asked to stop."""
    grace: bool = True
    """No lease lapses before one lease time after the server's start."""

    # weights ----------------------------------------------------------------------------------------------------------
    failed_push: Literal["rename", "wait"] = "rename"
    """A failed version is staged again under a new name at once; ``wait``: nothing happens until the next step."""
    verify: Literal["file", "loaded"] = "file"
    """A version is published once its file verifies; ``loaded``: once every engine has loaded it."""
    pull_idle: bool = True
    """An engine also pulls while idle; False: between the turns of an episode only."""
    reconcile: bool = True
    """A worker reloads its engine whenever it differs from the newest version; False: it trusts the push."""

    # retention --------------------------------------------------------------------------------------------------------
    removes: Literal["saved", "trained"] = "saved"
    """What was trained may go once a checkpoint has its step; ``trained``: at once."""
    removal_lock: bool = True
    """Retention holds the run row from asking who needs a trajectory until its removal; False: these are two steps."""
    removed_returns: bool = False
    """True: a start returns items of abandoned steps to ready without asking whether they were removed."""

    # resume -----------------------------------------------------------------------------------------------------------
    checkpoint_of: Literal["history", "head"] = "history"
    """A checkpoint row names a step of the live history; ``head``: any but the newest is refused."""
    abandoned: Literal["ready", "stay"] = "ready"
    """Items of abandoned steps return to ready; ``stay``: their consumed rows are only marked."""
    checkpoint_pick: Literal["live", "highest"] = "live"
    """The newest checkpoint of the live history; ``highest``: that with the highest step of any branch."""
    checkpoint_path: Literal["unique", "step"] = "unique"
    """The file's path holds branch and fence; ``step``: only the step."""
    lag: Literal["effective", "raw"] = "effective"
    """Lag counts both arms of a branch; ``raw``: it is the difference of the numbers of updates."""
    masked_group: Literal["each", "any"] = "each"
    """With ``segment_mask``, a group is in range while each member has a token in range; ``any``: while one member has."""
    future: Literal["name", "updates"] = "name"
    """A token is of the future if its version has no row; ``updates``: if it has more updates than the ledger."""

    @property
    def capacity(self) -> int:
        """How many trajectories may be outstanding when something opens."""
        admitted = ((self.lag_bound if self.ahead is None else self.ahead) + 1) * self.admitted
        return admitted if self.oversample is None else min(admitted, self.batch + self.oversample)

    @property
    def admitted(self) -> int:
        """The batch that admission counts in."""
        return self.enough if self.ahead is None and self.admission_batch == "min" else self.batch

    @property
    def enough(self) -> int:
        """How many trajectories a step starts from."""
        return self.batch if self.batch_min is None else self.batch_min

    @property
    def seats(self) -> int:
        """Seats of a group, redundant ones included."""
        return self.group + self.extra
