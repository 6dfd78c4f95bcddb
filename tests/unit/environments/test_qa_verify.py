"""One question, one answer, one verifier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import known_keys
from agentrl.environment.demonstrate import play
from agentrl.errors import UsageError
from agentrl.types import Termination
from environments.qa_verify import QaVerify, QaVerifyLarge
from environments.qa_verify.questions import ASPECTS, FACTS

ENV = QaVerify()


async def verdict(environment: Any, task: Any, text: str) -> bool | None:
    played = await play(environment, task, lambda episode: text)
    assert played.reward is not None
    assert played.termination is Termination.TERMINATED
    return played.reward.success


def test_every_fact__is_asked_in_training_too() -> None:
    def facts(split: str) -> set[tuple[str, str]]:
        return {(task.payload["country"], task.payload["aspect"]) for task in ENV.tasks(split, 0, 6000)}

    assert facts("train") == {(country, aspect) for country in FACTS for aspect in ASPECTS}
    assert len(facts("heldout")) > 0.7 * len(facts("train"))


async def test_one_turn__is_the_whole_episode() -> None:
    (task,) = ENV.tasks("train", 0, 1)
    right = task.payload["answers"][0]
    assert await verdict(ENV, task, f" {right}\n") is True
    assert await verdict(ENV, task, f"{right} {right}") is False
    assert await verdict(ENV, task, " ".join(FACTS["France"])) is False


def test_defaults__name_settings_that_exist() -> None:
    assert set(ENV.run_defaults) <= set(known_keys())
    assert 0.35 <= ENV.run_defaults["staleness.eta"] <= 0.5


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def test_questions_from_a_file__are_verified_as_text_or_number(tmp_path: Path) -> None:
    rows = [{"question": f"{i}: how much?", "answer": ["1,000", "1 thousand"]} for i in range(20)]
    text = QaVerifyLarge(data=write(tmp_path / "q.jsonl", rows))
    number = QaVerifyLarge(data=write(tmp_path / "n.jsonl", [{**row, "answer": "1000"} for row in rows]), check="number")
    task = text.tasks("train", 0, 1)[0]
    assert await verdict(text, task, "Let me see.\nAnswer: 1 Thousand.") is True
    assert await verdict(text, task, "Answer: 1000.0") is False
    task = number.tasks("train", 0, 1)[0]
    assert await verdict(number, task, "Answer: 1,000.0") is True
    assert await verdict(number, task, "Answer: 1001") is False
    assert await verdict(QaVerifyLarge(data=tmp_path / "n.jsonl", check="number", tolerance=0.01), task, "Answer: 1001") is True


@pytest.mark.parametrize(
    ("rows", "check", "said"),
    [
        ([{"question": "q"}], "text", "Row 0 .* needs question and answer"),
        ([{"question": "q", "answer": ""}], "text", "needs question and answer"),
        ([{"question": "q", "answer": []}], "text", "needs question and answer"),
        ([{"question": "q", "answer": "many"}], "number", "is no number"),
    ],
)
def test_wrong_rows__are_refused_by_name(rows: list[dict[str, Any]], check: Any, said: str, tmp_path: Path) -> None:
    environment = QaVerifyLarge(data=write(tmp_path / "q.jsonl", rows), check=check)
    with pytest.raises(UsageError, match=said):
        environment.tasks("train", 0, 1) or environment.tasks("heldout", 0, 1)


def test_no_source__says_what_to_give() -> None:
    with pytest.raises(UsageError, match=r"environment_options.data=FILE"):
        QaVerifyLarge()
