"""Every exception of the library.

    AgentRLError
    ├── UsageError                 bad configuration or input            exit code 2
    ├── NotReadyError              database, sandbox, weights missing    exit code 3
    ├── RunFailed                  the run itself failed                 exit code 1
    ├── StoreError
    │   ├── Fenced                 another holder took over; stop writing
    │   ├── SegmentGap             an earlier segment is missing
    │   ├── SegmentConflict        same key, other body
    │   ├── IncompleteTrajectory   fewer segments stored than announced
    │   ├── UnknownVersion         a policy version without a row
    │   ├── BadValue               a value that the store refuses, with the field's name
    │   ├── IllegalMove            a state move that does not exist
    │   ├── CommitRefused          count, lag or lease changed under a step
    │   └── UnknownOutcome         the connection broke; retry by key
    ├── EngineError
    │   ├── WeightsCorrupt         checksum or names do not match
    │   ├── WrongAnswer            what an engine answered can't have been sampled
    │   └── BrokenDistribution     a log-prob that is not finite
    ├── EnvironmentFault           an environment's own code failed
    ├── JudgeError                 a judge gave no verdict; the grading may be tried again
    │   ├── JudgeUnavailable       the server was away, busy or incoherent at each try
    │   ├── JudgeNonsense          its answer holds no verdict
    │   ├── JudgeOverrun           what it was to read is longer than it reads
    │   └── JudgeRefused           wrong address, model, key or request
    └── TokenDrift                 stored ids and engine ids differ

To add one: derive from the class whose reaction fits, write one sentence, keep all state in ``args`` (exceptions are pickled
between processes), and name run, trajectory, turn or container and the next command in the message.
"""

from __future__ import annotations


class AgentRLError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class UsageError(AgentRLError):
    """The user asked for something that does not exist or does not fit; nothing was started."""

    exit_code = 2


class NotReadyError(AgentRLError):
    """Something outside the library is missing or unreachable."""

    exit_code = 3


class RunFailed(AgentRLError):
    """A run ended without reaching its target."""


class StoreError(AgentRLError):
    """The store refused or could not finish an operation."""


class Fenced(StoreError):
    """The fence or lease of the caller is no longer valid; another holder took over."""


class SegmentGap(StoreError):
    """A segment arrived before its predecessor. ``args[1]`` is the index the store expects next."""

    @property
    def next_seg(self) -> int:
        return int(self.args[1])


class SegmentConflict(StoreError):
    """The same segment key was written before with a different body."""


class IncompleteTrajectory(StoreError):
    """Completion announced more segments than are stored. ``args[1]`` is the index the store expects next."""

    @property
    def next_seg(self) -> int:
        return int(self.args[1])


class UnknownVersion(StoreError):
    """A token carries a policy version that has no row."""


class BadValue(StoreError):
    """A value can't be stored (non-finite, NUL in JSON, unequal lengths); the message names the field."""


class IllegalMove(StoreError):
    """The trajectory is not in a place from which this move exists."""


class CommitRefused(StoreError):
    """A step was refused by count, lag or lease; the trainer holds weights that must not exist and has to resume."""


class UnknownOutcome(StoreError):
    """The connection broke before the answer; retry the same call with the same keys."""


class EngineError(AgentRLError):
    """The inference engine failed; the episode is an infrastructure failure."""


class WeightsCorrupt(EngineError):
    """A weights file does not match its checksum or the model's names and shapes."""


class WrongAnswer(EngineError):
    """An engine's answer contradicts itself or can't have been sampled; nothing of it is kept."""


class BrokenDistribution(EngineError):
    """An engine gave a log-prob that is not finite: its weights or its kernels are broken, so others will follow."""


class EnvironmentFault(AgentRLError):
    """Code of an environment raised; the message names environment, task and method. Starting again can't help."""

    exit_code = 2


class JudgeError(AgentRLError):
    """A language model that grades gave no verdict; it never stands for a reward."""


class JudgeUnavailable(JudgeError):
    """Its server was away, busy or incoherent at each try."""


class JudgeNonsense(JudgeError):
    """It answered, and the answer holds no verdict."""


class JudgeOverrun(JudgeError):
    """What it was to read is longer than it can read; nothing was cut off."""


class JudgeRefused(JudgeError):
    """Its server refused the request: address, model, key or a field is wrong."""


class TokenDrift(AgentRLError):
    """Ids that were stored, sent or replayed differ; the message names trajectory, turn and token."""
