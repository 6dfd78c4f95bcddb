"""A stored run checked row by row: every claim that its rows make is made again from something else.

- prefixes: the environment and the template write each observation again, id for id (`agentrl.replay.prefixes`);
- actions: lengths, versions, stop tokens, texts, calls and endings fit each other (`agentrl.tokens.audit`);
- what would be trained: exactly the sampled tokens, each reward on its own turn (`agentrl.trainer.gate`);
- contents: each segment is still the one that was written (its content hash);
- log-probs: the weights of the version that a token names give the recorded log-prob (`agentrl.replay.rescore`);
- the ledger: the rewards give the advantages that a step trained with (`agentrl.replay.ledger`).

The first lie ends the check: `TokenDrift` names trajectory, segment and token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.config.algorithm import AlgorithmConfig
from agentrl.environment.base import Environment
from agentrl.replay.ledger import check_step
from agentrl.replay.prefixes import check_prefixes
from agentrl.replay.rescore import Rescorer
from agentrl.store.evidence import StepEvidence
from agentrl.tokens.audit import check_trajectory, drift
from agentrl.tokens.chat_format import ChatFormat
from agentrl.trainer.batch import BatchTrajectory, build_batch
from agentrl.trainer.gate import check_rewards, check_tokens
from agentrl.types import OUTSIDE, DropReason, FinishReason, Outcome, StoredTrajectory, Task, Termination

_LIES = (DropReason.TOKEN_DRIFT, DropReason.NON_FINITE, DropReason.BAD_VERSIONS, DropReason.UNGRADED)


@dataclass
class Report:
    """What was compared so far; ``unrendered`` and others say what could not be, and why."""

    trajectories: int = 0
    segments: int = 0
    contexts: int = 0
    actions: int = 0
    rendered: int = 0
    unrendered: int = 0
    turn_rewards: int = 0
    verdicts: int = 0
    recredited: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """A trajectory with its task; None where the store has none."""

    stored: StoredTrajectory
    task: Task | None


class ReplayCheck:
    """Checks pages of trajectories, then steps. ``environment`` None: prompts are not written again."""

    def __init__(
        self,
        chat: ChatFormat,
        environment: Environment | None,
        algorithm: AlgorithmConfig,
        rescorer: Rescorer | None,
        *,
        max_context: int,
    ) -> None:
        self.report = Report()
        self._chat = chat
        self._environment = environment
        self._algorithm = algorithm
        self._rescorer = rescorer
        self._max_context = max_context

    def check(self, page: Sequence[Evidence]) -> None:
        """Raises `TokenDrift` at the first lie."""
        comparable: list[BatchTrajectory] = []
        for evidence in page:
            self._check_rows(evidence)
            comparable += self._check_batch(evidence.stored)
        if self._rescorer is not None and comparable:
            self._rescorer.check(comparable, [evidence.stored for evidence in page])

    def check_step(self, stored: Sequence[StoredTrajectory], evidence: StepEvidence) -> None:
        """A step's trajectories in the order of ``evidence``; `TokenDrift` as above."""
        self.report.recredited += check_step(stored, evidence, self._algorithm, self._max_context)

    def _check_rows(self, evidence: Evidence) -> None:
        stored, environment = evidence.stored, self._environment_of(evidence.stored)
        schemas = {name: tool.parameters for name, tool in environment.tools.items()} if environment else None
        self._check_lineage(stored)
        check_trajectory(stored, self._chat, schemas)
        rendered = 0
        if environment is not None and evidence.task is not None:
            _check_budgets(stored, environment)
            rendered = check_prefixes(stored, self._chat, environment, environment.messages(evidence.task))
        report = self.report
        report.trajectories += 1
        report.segments += len(stored.segments)
        report.contexts += len({s.context for s in stored.segments})
        report.actions += sum(s.n_act for s in stored.segments)
        report.rendered += rendered
        report.unrendered += len(stored.segments) - rendered
        report.turn_rewards += sum(s.reward is not None for s in stored.segments)
        report.verdicts += stored.reward is not None

    def _environment_of(self, stored: StoredTrajectory) -> Environment | None:
        """None where nothing could be told from a difference: another version, or a program outside that wrote the prompts."""
        environment, lineage = self._environment, stored.lineage
        if environment is None or lineage.sandbox == OUTSIDE:
            return None
        if stored.parent is not None:
            environment = environment.all_agents().get(stored.environment)
            if environment is None:
                return None
        return environment if environment.version == lineage.environment_version else None

    def _check_lineage(self, stored: StoredTrajectory) -> None:
        for name, own in (("tokenizer", self._chat.tokenizer_hash), ("chat template", self._chat.template_hash)):
            said = stored.lineage.tokenizer_hash if name == "tokenizer" else stored.lineage.template_hash
            if said != own:
                raise drift(
                    stored, None, None, f"it names another {name} ({said[:12]}) than its model directory has ({own[:12]})"
                )
        if (stored.outcome is Outcome.GRADED) != (stored.reward is not None):
            has = "no verdict" if stored.reward is None else "a verdict"
            raise drift(stored, None, None, f"outcome {stored.outcome.value}, but it has {has}")

    def _check_batch(self, stored: StoredTrajectory) -> list[BatchTrajectory]:
        """What the trainer would make of it: nothing but the sampled tokens trains, rewards are on their turns."""
        batch = build_batch([stored], max_context=self._max_context)
        for _, reason in batch.rejected:
            if reason in _LIES:
                raise drift(stored, None, None, f"the trainer would refuse it: {reason.value}")
        for trajectory in batch.trajectories:
            check_tokens(stored, trajectory)
            check_rewards(stored, trajectory)
        return batch.trajectories


def _check_budgets(stored: StoredTrajectory, environment: Environment) -> None:
    """A budget ran out exactly when the episode says so; a natural end in the very last turn wins over the budget."""
    acting = [segment for segment in stored.segments if segment.n_act]
    ended = stored.termination
    if not acting or ended.is_error():
        return
    last = acting[-1]
    cut = last.finish_reason is FinishReason.LENGTH
    wrong = None
    if len(acting) > environment.max_turns:
        wrong = f"{len(acting)} turns, but max_turns is {environment.max_turns}"
    elif ended is Termination.TRUNCATED_TURNS and len(acting) < environment.max_turns:
        wrong = f"it says {ended.value} after {len(acting)} of {environment.max_turns} turns"
    elif ended is Termination.TRUNCATED_TURN_TOKENS and last.n_act < environment.max_turn_tokens:
        wrong = f"it says {ended.value} after {last.n_act} of {environment.max_turn_tokens} tokens of the turn"
    elif ended is Termination.TRUNCATED_TOKENS and cut and stored.n_tokens < environment.max_tokens:
        wrong = f"it says {ended.value} after {stored.n_tokens} of {environment.max_tokens} tokens"
    if wrong:
        raise drift(stored, last, None, f"{wrong}; the end is another one, or the environment changed without a new version")
