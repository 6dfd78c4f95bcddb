"""A real run holds no lie; each lie planted into its rows is found, with its row (token_truth, version_truth)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from agentrl.cli.session import store_session
from agentrl.errors import TokenDrift
from agentrl.replay.stored_run import StoredRun
from agentrl.store.codec import segment_parameters
from agentrl.store.contract import RunRow
from agentrl.store.evidence import ended_trajectories, step_evidence, steps_of
from agentrl.store.postgres import PostgresStore
from agentrl.types import Segment, StoredTrajectory
from tests.command_line import CommandLine

Key = tuple[UUID, int]
"""Id and start version of a trajectory."""

_REWRITE = """
  update agentrl.segment set context = %s, versions = %s, token_versions = %s, n_obs = %s, n_act = %s, ids = %s,
    logprobs = %s, loss_mask = %s, observation_text = %s, action_text = %s, reward = %s
  where trajectory = %s and seg = %s returning seg
"""


def test_whole_run__holds_no_lie_by_the_command_of_the_docs(learned: str, command_line: CommandLine) -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "check-a-run.md"
    (command,) = re.findall(r"^agentrl (replay .*)$", page.read_text(), re.M)
    output = command_line.run(*command.replace("latest", "learned").split())
    assert "No lie was found." in output
    assert re.search(r"checked +300 trajectories", output)
    assert re.search(r"re-scored with the weights of version \d+ to \d+", output)
    assert "Traceback" not in output


def test_run_without_a_row__exit_2(learned: str, command_line: CommandLine) -> None:
    assert "There is no run named 'nothing'" in command_line.run("replay", "check", "nothing", code=2)


def moved_boundary(segment: Segment) -> Segment:
    """The last token of the observation is stored as sampled."""
    return replace(
        segment,
        observation=segment.observation[:-1],
        action=np.concatenate([segment.observation[-1:], segment.action]),
        logprobs=np.concatenate([np.float32([-0.1]), segment.logprobs]),
        versions=np.concatenate([segment.versions[:1], segment.versions]),
    )


def changed_observation(segment: Segment) -> Segment:
    observation = segment.observation.copy()
    observation[1] += 1
    return replace(segment, observation=observation)


def shifted_logprob(segment: Segment) -> Segment:
    logprobs = segment.logprobs.copy()
    logprobs[0] -= 0.05
    return replace(segment, logprobs=logprobs)


def other_version(segment: Segment) -> Segment:
    """The span names the oldest weights of the run."""
    return replace(segment, versions=np.zeros(segment.n_act, np.int32))


class Rows:
    """The run's rows, and ways to plant something into them."""

    def __init__(self, store: PostgresStore, run: RunRow) -> None:
        self.store, self.run = store, run
        self.replay = StoredRun(store, run)
        self.ended = ended_trajectories(store, run.id, 1000)

    def stored(self, key: Key) -> StoredTrajectory:
        return self.store.trajectories(self.run.id, [key[0]], [key[1]])[key[0]]

    def found(self, key: Key) -> str:
        """The lie that a check of one trajectory finds."""
        with pytest.raises(TokenDrift) as lie:
            self.replay.check_trajectories([key])
        assert str(key[0]) in str(lie.value)
        return str(lie.value)

    @contextmanager
    def planted(self, key: Key, number: int, change: Callable[[Segment], Segment]) -> Iterator[None]:
        """A segment's row replaced by another that is sound in itself: its texts fit it."""
        before = self.stored(key).segments[number]
        self._write(key, change(before))
        try:
            yield
        finally:
            self._write(key, before)

    def _write(self, key: Key, segment: Segment) -> None:
        chat = self.replay.chat
        segment = replace(
            segment,
            observation_text=chat.decode(segment.observation.tolist()),
            action_text=chat.decode_action(segment.action.tolist()),
        )
        _, context, version, token_versions, n_obs, n_act, ids, logprobs, mask, *_ = segment_parameters(segment)
        versions = [version] if token_versions is None else sorted(set(segment.versions.tolist()))
        values = (context, versions, token_versions, n_obs, n_act, ids, logprobs, mask)
        texts = (segment.observation_text, segment.action_text, segment.reward)
        assert self.store.rows(_REWRITE, (*values, *texts, key[0], segment.index))


@pytest.fixture(scope="module")
def rows(learned: str, command_line: CommandLine) -> Iterator[Rows]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in command_line.environment.items():
            patch.setenv(name, value)
        patch.delenv("AGENTRL_DATABASE_URL", raising=False)
        with store_session() as session:
            run = session.store.find_run("learned")
            assert run is not None
            yield Rows(session.store, run)


@pytest.fixture(scope="module")
def later(rows: Rows) -> Key:
    """A trajectory of an updated policy, three turns or more."""
    for key in rows.ended:
        segments = rows.stored(key).segments
        if len(segments) > 2 and segments[1].n_act and segments[0].versions[0] > 0:
            rows.replay.check_trajectories([key])
            return key
    raise AssertionError("no trajectory of an updated policy")


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (1, changed_observation, "segment 1, token 1: the environment and the template write"),
        (1, moved_boundary, "it would be trained"),
        (1, shifted_logprob, "segment 1, action token 0"),
        (0, other_version, "under version 0"),
    ],
)
def test_planted_tokens__are_found_with_their_row(
    rows: Rows, later: Key, number: int, change: Callable[[Segment], Segment], said: str
) -> None:
    with rows.planted(later, number, change):
        assert said in rows.found(later)


def test_truncation_called_natural_end__is_found(rows: Rows) -> None:
    update = "update agentrl.trajectory set termination = %s where id = %s returning id"
    cut = rows.store.rows(
        "select distinct on (termination) id, start_version, termination from agentrl.trajectory where run = %s "
        "and termination in ('truncated_turns', 'truncated_turn_tokens') order by termination",
        (rows.run.id,),
    )
    assert cut, "no episode of the run was truncated"
    for identity, start, termination in cut:
        rows.store.rows(update, ("terminated", identity))
        assert "said to have ended by itself" in rows.found((identity, start))
        rows.store.rows(update, (termination, identity))


def test_reward_on_another_turn__is_found(rows: Rows) -> None:
    step, branch = steps_of(rows.store, rows.run.id)[-1]
    evidence = step_evidence(rows.store, rows.run.id, step, branch)
    assert rows.replay.check_step(step, branch) == len(evidence.trained)
    key = (evidence.trained[0].trajectory, evidence.start_versions[0])
    moved = lambda segment: replace(segment, reward=0.5)  # noqa: E731
    with (
        rows.planted(key, 0, moved),
        pytest.raises(TokenDrift, match=f"{key[0]}, segment 0, token .* trained it with advantage"),
    ):
        rows.replay.check_step(step, branch)


def test_row_changed_by_hand__ends_the_command_with_code_1(rows: Rows, later: Key, command_line: CommandLine) -> None:
    update = "update agentrl.segment set finish_reason = %s where trajectory = %s and seg = 1 returning seg"
    rows.store.rows(update, ("length", later[0]))
    output = command_line.run("replay", "check", "learned", "--limit", "100", code=1)
    rows.store.rows(update, ("stop", later[0]))
    assert f"agentrl: trajectory {later[0]}, segment 1" in output
