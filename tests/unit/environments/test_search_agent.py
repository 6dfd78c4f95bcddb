"""Search over a local corpus: the index, the questions, a corpus of one's own."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Message, tool_call
from agentrl.environment.demonstrate import play
from agentrl.errors import UsageError
from environments.search_agent import SearchAgent, SearchAgentLarge, world
from environments.search_agent.index import MAX_WORDS, Index

ENV = SearchAgent()
DOCUMENTS = [
    ("Red Mill", "Red Mill: seat Porto, head Noa Field"),
    ("Noa Field", "Noa Field: employer Red Mill"),
    ("Porto", "Porto: river Douro"),
    ("Mill", "A mill grinds."),
]


@pytest.fixture(scope="module")
def index() -> Index:
    return Index(DOCUMENTS)


def titles(index: Index, query: str, limit: int = 5) -> list[str]:
    return [hit.title for hit in index.search(query, limit)]


def test_titles__count_more_than_texts(index: Index) -> None:
    assert titles(index, "Noa Field")[0] == "Noa Field"
    assert titles(index, "Red Mill")[0] == "Red Mill"


def test_documents_with_all_words__come_first(index: Index) -> None:
    assert titles(index, "river Douro nowhere") == ["Porto"]
    assert (
        titles(index, "mill porto") == ["Red Mill", "Porto", "Mill", "Noa Field"]
        or titles(index, "mill porto")[0] == "Red Mill"
    )


def test_words__are_stemmed_and_case_is_ignored(index: Index) -> None:
    assert titles(index, "MILLS grinding") == titles(index, "mill grinds")
    assert titles(index, "grinding") == ["Mill"]


@pytest.mark.parametrize(
    "query",
    [
        '"',
        "* *",
        "NEAR(",
        "title:",
        "a AND",
        "AND OR NOT",
        "^",
        "-",
        "'; DROP TABLE document; --",
        "\0",
        "\ud800",
        "()",
        "{}",
        "x" * 100_000,
    ],
)
def test_any_query__is_words_and_never_fails(query: str, index: Index) -> None:
    index.search(query, 5)
    assert titles(index, "Porto")[0] == "Porto"


def test_query_words__are_limited(index: Index) -> None:
    assert titles(index, " ".join(f"w{i}" for i in range(MAX_WORDS)) + " Porto") == []
    assert titles(index, " ".join(["Porto"] * 1000)) == titles(index, "Porto")


def test_index__is_searched_from_several_threads(index: Index) -> None:
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(titles(index, "Porto"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [titles(index, "Porto")] * 8


def test_every_entity__is_the_first_hit_for_its_name() -> None:
    for task in ENV.tasks("train", 0, 20):
        index, small = ENV.index_of(task), world.build(world.SMALL, task.payload["world"])
        for kind in ("person", "company", "city"):
            for name in small.entities[kind]:
                assert index.search(name, 1)[0].title == name


def test_path__follows_the_facts_of_the_documents() -> None:
    for task in ENV.tasks("train", 2, 50):
        path, chain, index = task.payload["path"], task.payload["chain"], ENV.index_of(task)
        for name, relation, target in zip(path, chain, path[1:], strict=False):
            assert f"{relation} {target}" in index.search(name, 1)[0].text
        assert len(path) == len(chain) + 1


def test_small_questions__are_answered_by_their_own_documents_and_not_from_memory() -> None:
    answers: dict[str, set[str]] = {}
    for task in ENV.tasks("train", 3, 2000):
        answers.setdefault(task.payload["question"], set()).update(task.payload["answers"])
    assert min(map(len, answers.values())) >= 3


def test_held_out_questions__are_new_combinations_of_known_parts() -> None:
    asked = {
        split: {(task.payload["path"][0], tuple(task.payload["chain"])) for task in ENV.tasks(split, 0, 2000)}
        for split in ("train", "heldout")
    }
    for part in (0, 1):
        assert {one[part] for one in asked["heldout"]} <= {one[part] for one in asked["train"]}
    assert len(asked["heldout"]) >= 15


def test_small_chains__end_where_the_first_relation_of_the_question_is_first_found() -> None:
    for task in ENV.tasks("train", 1, 50):
        *before, last = (ENV.index_of(task).search(name, 1)[0].text for name in task.payload["path"][:-1])
        asked = task.payload["chain"][-1]
        assert f"{asked} " in last
        assert not any(f"{asked} " in text for text in before)


def test_large_world__says_the_same_facts_in_prose() -> None:
    large = world.build(world.LARGE)
    texts = dict(large.documents())
    for (name, relation), target in list(large.facts.items())[:500]:
        assert target in texts[name]
        assert relation in texts[name]


def test_questions__need_as_many_documents_as_hops() -> None:
    for task in ENV.tasks("heldout", 0, 50):
        first = ENV.index_of(task).search(task.payload["path"][0], 1)[0].text
        if len(task.payload["chain"]) > 1:
            assert task.payload["answers"][0] not in first or task.payload["path"][0] in first
    hops = {len(task.payload["chain"]) for task in ENV.tasks("heldout", 0, 200)}
    assert hops == {1, 2, 3}


async def test_naming_every_city__is_no_answer() -> None:
    task = next(task for task in ENV.tasks("train", 0, 100) if task.payload["chain"][-1] == "seat")
    played = await play(ENV, task, lambda episode: " ".join(world.CITIES))
    assert played.reward is not None
    assert played.reward.success is False


async def test_large_tools__show_numbers_and_read_whole_documents() -> None:
    environment = SearchAgentLarge()
    (task,) = environment.tasks("train", 1, 1)
    first = task.payload["path"][0]
    number = environment.index.search(first, 1)[0].number
    turns = [
        tool_call("search", query=first),
        tool_call("read", number=number),
        tool_call("read", number=10**30),
        tool_call("search", query="zzz"),
        f"I read it.\nAnswer: {task.payload['answers'][0]}.",
    ]
    played = await play(environment, task, lambda episode: turns[episode.n_turns])
    hits, text, missing, nothing = [entry.content for entry in played.entries[2:] if isinstance(entry, Message)]
    assert hits.startswith(f"[{number}] {first}: ")
    assert len(hits.splitlines()) == environment.hits
    assert text.startswith(f"{first}\n")
    assert missing.startswith("error: there is no document")
    assert nothing == "no document"
    assert played.reward is not None
    assert played.reward.success is True


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def test_corpus_of_ones_own__is_searched_and_asked_about(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", [{"title": title, "text": text} for title, text in DOCUMENTS])
    rows = [{"question": f"{i}: who heads Red Mill?", "answer": ["Noa Field", "Noa"]} for i in range(20)]
    environment = SearchAgentLarge(corpus=corpus, data=write(tmp_path / "q.jsonl", rows))
    train, heldout = environment.tasks("train", 0, 20), environment.tasks("heldout", 0, 20)
    assert len(train) + len(heldout) == 20
    turns = [tool_call("search", query="head mill"), "Answer: noa"]
    played = await play(environment, train[0], lambda episode: turns[episode.n_turns])
    assert "Noa Field" in str(played.entries[3])
    assert played.reward is not None
    assert played.reward.success is True


@pytest.mark.parametrize(
    ("documents", "questions", "said"),
    [
        ([{"title": "a", "text": "b"}], None, "set both corpus"),
        ([{"title": "a"}], [{"question": "q", "answer": "a"}], "no text in the column 'text'"),
        ([], [{"question": "q", "answer": "a"}], "holds no document"),
        ([{"text": "b"}], [{"question": "q", "answer": {}}], "a text or a list"),
        ([{"text": "b"}], [{"answer": "a"}], "no text in the column 'question'"),
    ],
)
def test_wrong_files__are_refused_by_name(
    documents: list[dict[str, Any]], questions: list[dict[str, Any]] | None, said: str, tmp_path: Path
) -> None:
    corpus = write(tmp_path / "c.jsonl", documents)
    data = write(tmp_path / "q.jsonl", questions) if questions is not None else None
    with pytest.raises(UsageError, match=said):
        [SearchAgentLarge(corpus=corpus, data=data).tasks(split, 0, 5) for split in ("train", "heldout")]
