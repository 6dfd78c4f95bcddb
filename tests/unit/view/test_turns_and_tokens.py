"""Turns and tokens of a stored trajectory: what is in the loss, where units begin, and the exact bytes behind a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from agentrl.model.tiny_tokenizer import TokenizerPlan, build_tokenizer
from agentrl.store.contract import Trained
from agentrl.store.evidence import LastTraining
from agentrl.types import (
    Lineage,
    Outcome,
    Purpose,
    Sampling,
    Segment,
    StoredTrajectory,
    Termination,
    ToolCall,
    ToolResult,
)
from agentrl.view import tokens as module
from agentrl.view.tokens import Sums, sums, tokenizer_of, tokens
from agentrl.view.turns import exact_bytes, turns, versions_of


def segment(index: int, n_obs: int, versions: Sequence[int], **changes: object) -> Segment:
    n = len(versions)
    made = Segment(
        index, np.arange(n_obs, dtype=np.int32), np.arange(n, dtype=np.int32), np.full(n, -0.5, np.float32),
        np.array(versions, np.int32), observation_text="prompt", action_text="answer",
    )  # fmt: skip
    return replace(made, **changes)


def trajectory(*segments: Segment) -> StoredTrajectory:
    return StoredTrajectory(
        UUID(int=1), "task", "env", Purpose.TRAIN, None, 0, 1, 0, 0, Termination.TERMINATED, Outcome.POLICY_ENDED, None,
        Lineage("m", "t", "c", "local", "1", "float32", Sampling()), list(segments),
    )  # fmt: skip


def training(n: int, masked: Sequence[int] = ()) -> LastTraining:
    numbers = np.arange(n, dtype=np.float32)
    return LastTraining("run", 3, Trained(UUID(int=1), numbers, None, numbers * 10, None), masked)


TWO = trajectory(
    segment(0, 2, [1, 1, 2], loss_mask=np.array([1, 0, 1], np.uint8)),
    segment(1, 1, [2, 3], unit_starts=np.array([1, 1], np.uint8)),
)


def test_sums__sampled_tokens_are_those_in_the_loss_masked_or_too_old() -> None:
    assert sums(TWO, None) == Sums(observation=3, sampled=5, trains=4, masked=1, too_old=0)
    assert sums(TWO, training(5, masked=[1, 2])) == Sums(observation=3, sampled=5, trains=1, masked=1, too_old=3)


def test_tokens__numbers_of_the_step_go_to_their_action_tokens() -> None:
    found = tokens(TWO, training(5), None, 0)
    assert [t.kind for t in found] == ["observation"] * 2 + ["trains", "masked", "trains", "observation", "trains", "trains"]
    assert [t.numbers.get("advantage") for t in found] == [None, None, 0, 10, 20, None, 30, 40]
    assert [t.numbers.get("version") for t in found] == [None, None, 1, 1, 2, None, 2, 3]
    assert [t.segment for t in found if t.first] == [0, 1]
    assert [i for i, t in enumerate(found) if t.unit] == [2, 6, 7]


def test_tokens__pages_are_slices_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tokens(TWO, training(5), None, 0)
    monkeypatch.setattr(module, "PAGE", 3)
    assert [t for start in (0, 3, 6) for t in tokens(TWO, training(5), None, start)] == whole
    assert tokens(TWO, None, None, 8) == []


def test_tokens__decoded_by_the_tokenizer_of_the_model_folder(tmp_path: Path) -> None:
    assert tokenizer_of(tmp_path / "model") is None
    build_tokenizer(["say yes and no"], TokenizerPlan(vocab_size=300), tmp_path / "model")
    tokenizer = tokenizer_of(tmp_path / "model")
    assert tokenizer is not None, "a folder that came later is found"
    ids = np.array(tokenizer.encode("say no", add_special_tokens=False).ids, np.int32)
    found = tokens(trajectory(segment(0, 0, [1], observation=ids)), None, tokenizer, 0)
    assert "".join(t.text or "" for t in found[: len(ids)]) == "say no"


def test_turns__calls_results_and_what_became_of_the_history() -> None:
    first = segment(
        0, 1, [4, 4, 6], action_text="<think>a\nb</think>go",
        tool_calls=(ToolCall("run", {"code": "x\ny", "n": 1}), ToolCall("", None, "no name")),
        tool_results=(ToolResult("run", "out", True, 0.5, b"\xff"),),
    )  # fmt: skip
    last = segment(1, 2, [], context=1, action_text="")
    found = turns(trajectory(first, last), [])
    assert (found[0].versions, found[1].versions, found[1].n_act) == ("4-6", "", 0)
    assert found[0].reasoning is not None
    assert (found[0].reasoning.lines, found[0].answer.text) == (2, "go")
    assert [(call.name, call.arguments.text, call.error) for call in found[0].calls] == [
        ("run", "code:\nx\ny\nn: 1", None), ("", "", "no name"),
    ]  # fmt: skip
    (result,) = found[0].results
    assert (result.bytes, result.part, result.is_error) == (1, "result-0", True)
    assert found[0].note is None
    assert "history was rewritten" in (found[1].note or "")


def test_turns__pages_are_slices_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = trajectory(*(segment(i, 1, [1], context=i // 2) for i in range(5)))
    whole = turns(stored, [])
    assert [turn.note is None for turn in whole] == [True, True, False, True, False]
    monkeypatch.setattr("agentrl.view.turns.PAGE", 2)
    assert [turn for start in (0, 2, 4) for turn in turns(stored, [], start)] == whole
    assert turns(stored, [], 9) == []


def test_turns__sub_agents_stand_where_they_were_started() -> None:
    stored = trajectory(segment(0, 1, [1]), segment(1, 1, [1]))
    own = replace(stored, id=UUID(int=2), parent=stored.id, parent_segment=1)
    nested = replace(stored, id=UUID(int=3), parent=own.id, parent_segment=0)
    assert [[c.id for c in turn.children] for turn in turns(stored, [own, nested])] == [[], [own.id]]
    assert [[c.id for c in turn.children] for turn in turns(own, [own, nested])] == [[nested.id], []]


def test_versions_of__one_or_the_first_and_the_last() -> None:
    assert versions_of([segment(0, 1, [4, 4]), segment(1, 1, [])]) == "4"
    assert versions_of([segment(0, 1, [4, 5]), segment(1, 1, [7])]) == "4-7"
    assert versions_of([segment(0, 1, [])]) == ""


def test_tokens__that_are_no_text_are_ids(tmp_path: Path) -> None:
    build_tokenizer(["say yes and no"], TokenizerPlan(vocab_size=300), tmp_path)
    tokenizer = tokenizer_of(tmp_path)
    assert tokenizer is not None
    (half,) = [i for i in range(300) if tokenizer.id_to_token(i) == "Ã"]
    ids = np.array([half, 10**6, -1], np.int32)
    assert [t.text for t in tokens(trajectory(segment(0, 0, [], observation=ids)), None, tokenizer, 0)] == [None, None, None]


def test_exact_bytes__raw_ones_where_there_are_any() -> None:
    odd = segment(0, 1, [1], action_raw=b"\xff", observation_text="\udcff", tool_results=(ToolResult("a", "é"),))
    assert exact_bytes(odd, "action") == b"\xff"
    assert exact_bytes(odd, "observation") == b"\xed\xb3\xbf"
    assert exact_bytes(odd, "result-0") == "é".encode()
    with pytest.raises(KeyError):
        exact_bytes(odd, "result-1")
