"""What each page shows, as HTML and as JSON at the same address."""

from __future__ import annotations

import html
import re
from urllib.parse import quote

import numpy as np
import pytest
from store_bench import Bench, graded, segment
from test_store_sub_agents import child
from view_shelf import HOSTILE, LONG, Shelf

from agentrl.store.contract import ImportFilter, Trained
from agentrl.store.saved_queries import saved_queries


def test_runs__listed_newest_first(shelf: Shelf) -> None:
    assert [run["run_name"] for run in shelf.data("/")["runs"]][-2:] == ["grouped", "plain"]
    shown = shelf.page("/")
    assert shown.index('href="/runs/grouped"') < shown.index('href="/runs/plain"')


def test_run__books_charts_and_what_waits(shelf: Shelf) -> None:
    data = shelf.data("/runs/plain")
    assert data["conservation"]["holds"] is True
    assert [step["step"] for step in data["steps"]] == [1, 2, 3]
    shown = shelf.page("/runs/plain")
    assert "the books balance" in shown
    assert shown.count("<polyline") == 4, "lag and seconds between steps, raw and smooth"
    assert "infrastructure" in shown
    assert "waits for the trainer" in shown
    newest = shelf.data("/")["runs"][0]["run_name"]
    assert shelf.data("/runs/latest")["run"]["run_name"] == newest


def test_run__alerts_say_what_needs_a_look(shelf: Shelf) -> None:
    (alert,) = shelf.data("/runs/plain")["alerts"]
    assert (alert["alert"], alert["severity"], alert["active"], alert["steps"]) == ("failed", "warning", True, 3)
    assert "More than 5 % of what ended failed" in shelf.page("/runs/plain")
    assert shelf.data("/runs/grouped")["alerts"] == []
    assert "Alerts" not in shelf.page("/runs/grouped")


def test_list__has_what_a_trajectory_is_known_by(shelf: Shelf) -> None:
    data = shelf.data("/runs/plain/trajectories")
    by_id = {row["trajectory"]: row for row in data["trajectories"]}
    assert data["total"] == len(by_id)
    odd = by_id[str(shelf.odd.trajectory)]
    assert (odd["place"], odd["reward"], odd["segments"], odd["actions"], odd["tokens"]) == ("ready", -0.5, 2, 6, 14)
    assert (odd["first_version"], odd["last_version"]) == (shelf.version,) * 2
    running = by_id[str(shelf.running.trajectory)]
    assert (running["place"], running["termination"], running["segments"]) == ("live", None, 1)
    assert running["duration_s"] > 0
    trained = [row for row in data["trajectories"] if row["step"] == 2]
    assert {(row["place"], row["lag"]) for row in trained} <= {("consumed", 0), ("consumed", 1)}
    assert len(trained) == 2


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("place=dropped", {"failed"}),
        ("drop_reason=infrastructure", {"failed"}),
        ("error=SANDBOX", {"failed"}),
        ("termination=none", {"running"}),
        ("max_reward=-0.1", {"odd"}),
        ("success=false", {"odd"}),
        (f"said={quote('alert(1)')}", {"odd"}),
        ("task=nowhere", set()),
        ("place=live&purpose=train", {"running"}),
    ],
)
def test_filter__gives_those_only(shelf: Shelf, chosen: str, expected: set[str]) -> None:
    names = {str(shelf.odd.trajectory): "odd", str(shelf.running.trajectory): "running"}
    rows = shelf.data(f"/runs/plain/trajectories?{chosen}")["trajectories"]
    assert {names.get(row["trajectory"], "failed" if row["error"] else "another") for row in rows} == expected


def test_filters_by_step_version_and_group(shelf: Shelf) -> None:
    rows = shelf.data("/runs/plain/trajectories?step=3")["trajectories"]
    assert {row["step"] for row in rows} == {3}
    rows = shelf.data("/runs/plain/trajectories?version=1")["trajectories"]
    assert rows
    assert {row["first_version"] for row in rows} == {1}
    (group,) = [g for g in shelf.data("/runs/grouped/groups")["groups"] if g["state"] == "complete"]
    assert len(shelf.data(f"/runs/grouped/trajectories?group={group['grp']}")["trajectories"]) == 2


def test_counts__are_of_the_list_with_that_choice(shelf: Shelf) -> None:
    data = shelf.data("/runs/plain/trajectories?place=dropped")
    everything = shelf.data("/runs/plain/trajectories")
    assert data["total"] == 1
    assert data["counts"]["place"] == everything["counts"]["place"], "as if no place were chosen"
    assert data["counts"]["drop_reason"] == {"infrastructure": 1}
    assert sum(everything["counts"]["outcome"].values()) == everything["total"]


@pytest.mark.parametrize("column", ["reward", "segments", "actions", "lag", "duration_s", "task_id"])
def test_sort__by_column_without_value_last(shelf: Shelf, column: str) -> None:
    for order in ("asc", "desc"):
        rows = shelf.data(f"/runs/plain/trajectories?sort={column}&order={order}")["trajectories"]
        values = [row[column] for row in rows]
        known = [v for v in values if v is not None]
        assert values == sorted(known, reverse=order == "desc") + [None] * (len(values) - len(known))


def test_same_url_same_list__though_more_arrive(shelf: Shelf) -> None:
    def listed(path: str) -> list[str]:
        return [row["trajectory"] for row in shelf.data(path)["trajectories"]]

    before = shelf.data("/runs/grouped/trajectories")
    again = f"/runs/grouped/trajectories?until={before['until']}"
    newer = f"/runs/grouped/newer?until={before['until']}"
    assert shelf.data(newer) == {"newer": 0}
    opened = shelf.grouped.open(2)
    assert opened
    assert listed(again) == [row["trajectory"] for row in before["trajectories"]]
    assert shelf.data(newer) == {"newer": 2}
    assert len(listed("/runs/grouped/trajectories")) == len(before["trajectories"]) + 2


def test_no_silent_filter__refused_with_the_nearest_name(shelf: Shelf) -> None:
    assert "did you mean 'termination'?" in shelf.data("/runs/plain/trajectories?terminatoin=failed", 400)["error"]
    assert "did you mean 'dropped'?" in shelf.data("/runs/plain/trajectories?place=droped", 400)["error"]
    for wrong in (
        "sort=reward%3B",
        "order=up",
        "page=0",
        "page=x",
        "until=x",
        "min_reward=much",
        "step=1.5",
        "group=x",
        "page=9999999",
    ):
        assert shelf.data(f"/runs/plain/trajectories?{wrong}", 400)["error"], wrong


def test_empty_list__says_which_kind_of_empty(shelf: Shelf) -> None:
    assert "No trajectory of this run fits these filters" in shelf.page("/runs/plain/trajectories?task=nowhere")
    assert "The list ends before page 7" in shelf.page("/runs/plain/trajectories?page=7")
    assert "has no groups" in shelf.page("/runs/plain/groups")


def test_group__members_side_by_side(shelf: Shelf) -> None:
    (group,) = [g for g in shelf.data("/runs/grouped/groups")["groups"] if g["state"] == "complete"]
    data = shelf.data(f"/groups/{group['grp']}")
    assert [row["reward"] for row in data["trajectories"]] == [0.0, 1.0]
    shown = shelf.page(f"/groups/{group['grp']}")
    first, second = (row["trajectory"] for row in data["trajectories"])
    assert f"/compare/{first}/{second}" in shown
    both = shelf.page(f"/compare/{first}/{second}")
    assert both.count("<section") == 2


def test_step__its_trajectories_and_numbers(shelf: Shelf) -> None:
    data = shelf.data("/runs/plain/steps/1")
    assert len(data["trajectories"]) == 2
    shown = shelf.page("/runs/plain/steps/1")
    assert "loss" in shown
    assert "/runs/plain/steps/2" in shown
    assert "no step 9" in shelf.data("/runs/plain/steps/9", 404)["error"]


def test_trajectory__turns_calls_results_verdict_and_moves(shelf: Shelf) -> None:
    shown = shelf.page(f"/trajectories/{shelf.odd.trajectory}")
    assert "turn 0" in shown
    assert "turn 1" in shown
    assert "reasoning: 2 lines" in shown
    assert "call run" in shown
    assert "could not be read: no name" in shown
    assert "print(&#39;&lt;b&gt;&#39;)" in shown
    assert "result of run" in shown
    assert f"{len(LONG) - 20_000} more characters" in shown
    assert "waits for the trainer" not in shown, "it has not left that place yet"
    data = shelf.data(f"/trajectories/{shelf.odd.trajectory}")
    assert data["verdicts"][0]["value"] == -0.5
    assert [move["to_place"] for move in data["trajectory"]["events"]][-1] == "ready"


def test_exact_bytes__are_what_was_stored(shelf: Shelf) -> None:
    base = f"/trajectories/{shelf.odd.trajectory}/segments/0"
    found = {part: shelf.client.get(f"{base}/{part}") for part in ("action", "observation", "result-0", "result-1")}
    assert found["action"].content == b"\xff\x00raw"
    assert found["result-0"].content == LONG.encode()
    assert found["result-1"].content == b"\x00\xfe"
    assert found["observation"].content == HOSTILE.encode()
    for answer in found.values():
        assert answer.headers["content-disposition"].startswith("attachment")
    for missing in ("result-2", "ids", "../../.."):
        assert shelf.client.get(f"{base}/{missing}").status_code == 404
    assert shelf.client.get(f"/trajectories/{shelf.odd.trajectory}/segments/7/action").status_code == 404


def test_tokens__each_with_its_numbers_and_sums(shelf: Shelf) -> None:
    data = shelf.data(f"/trajectories/{shelf.odd.trajectory}/tokens")
    assert data["sums"] == {"observation": 8, "sampled": 6, "trains": 5, "masked": 1, "too_old": 0}
    assert [token["kind"] for token in data["tokens"][-3:]] == ["trains", "masked", "trains"]
    assert data["tokens"][4]["numbers"] == {"log-prob": -1.0, "version": shelf.version}
    assert data["trained_by"] is None
    assert "tokenizer is not on this machine" in shelf.page(f"/trajectories/{shelf.odd.trajectory}/tokens")
    (first, *_) = shelf.data("/runs/plain/steps/1")["trajectories"]
    data = shelf.data(f"/trajectories/{first['trajectory']}/tokens")
    assert data["trained_by"] == {"run": "plain", "step": 1}
    assert [token["numbers"]["advantage"] for token in data["tokens"][4:]] == [1, 2, 3]
    assert data["tokens"][4]["numbers"]["training log-prob"] == -0.25
    rest = shelf.data(f"/trajectories/{first['trajectory']}/tokens?from=5")["tokens"]
    assert rest == data["tokens"][5:]
    assert shelf.data(f"/trajectories/{first['trajectory']}/tokens?from=-1", 400)


def test_bounded__every_statement_of_every_page_runs_and_has_a_limit(shelf: Shelf) -> None:
    odd, (group, *_) = shelf.odd.trajectory, shelf.data("/runs/grouped/groups")["groups"]
    seen = 0
    for path in (
        "/", "/runs/plain", "/runs/plain/trajectories", "/runs/plain/trajectories?said=x&sort=lag&page=2", "/runs/plain/groups",
        "/runs/plain/steps/1", f"/groups/{group['grp']}", f"/trajectories/{odd}", f"/trajectories/{odd}/tokens",
        f"/compare/{odd}/{shelf.running.trajectory}",
    ):  # fmt: skip
        for statement in statements_of(shelf.page(path)):
            assert "limit" in statement.lower(), statement
            assert shelf.reader.ask(statement).result.columns
            seen += 1
    assert seen > 20


def statements_of(page: str) -> list[str]:
    return [html.unescape(s) for s in re.findall(r"<pre>(.*?)</pre>", page.split('class="sql"')[1], re.S)]


def test_query__sql_shown_gives_the_rows_shown(shelf: Shelf) -> None:
    for path in ("/queries/trajectories?run=plain&limit=2", "/queries/timeline?trajectory=" + str(shelf.odd.trajectory)):
        (statement,) = statements_of(shelf.page(path))
        assert len(shelf.reader.ask(statement).result.rows) == len(shelf.data(path)["rows"])
    assert "limit=0" in shelf.data("/queries/trajectories?limit=0", 400)["error"]


def test_counts__say_when_they_are_of_the_newest_only(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shelf.data("/runs/plain/trajectories")
    assert whole["counted_all"] is True
    monkeypatch.setattr("agentrl.view.listing.MOST_COUNTED", 3)
    monkeypatch.setattr("agentrl.view.list_pages.MOST_COUNTED", 3)
    part = shelf.data("/runs/plain/trajectories")
    assert (part["counted_all"], part["total"]) == (False, 3)
    assert len(part["trajectories"]) == len(whole["trajectories"]), "the list has them all"
    shown = shelf.page("/runs/plain/trajectories?step=1")
    assert "counted among the newest 3" not in shown, "fewer than that were trained in the step"
    shown = shelf.page("/runs/plain/trajectories")
    assert "counted among the newest 3" in shown
    assert 'value="abandoned_branch"' in shown, "what was not counted can be chosen all the same"


def test_news__are_those_that_the_filters_let_through(shelf: Shelf) -> None:
    until = shelf.data("/runs/plain/trajectories")["trajectories"][-1]["trajectory"]
    assert shelf.data(f"/runs/plain/newer?until={until}")["newer"] == shelf.data("/runs/plain/trajectories")["total"] - 1
    assert shelf.data(f"/runs/plain/newer?until={until}&place=dropped")["newer"] == 1
    assert shelf.data(f"/runs/plain/newer?until={until}&task=nowhere")["newer"] == 0
    fresh = Bench(shelf.store, name="fresh")
    fresh.start()
    fresh.publish()
    shown = shelf.page("/runs/fresh/trajectories")
    assert "has opened no trajectory yet" in shown
    assert 'data-newer="/runs/fresh/newer"' in shown
    fresh.open(2)
    assert shelf.data("/runs/fresh/newer")["newer"] == 2


def test_running__is_not_said_to_have_failed(shelf: Shelf) -> None:
    path = f"/trajectories/{shelf.running.trajectory}"
    assert shelf.data(path)["trajectory"]["termination"] is None
    assert "No end is written" in shelf.page(path)
    compared = shelf.page(f"/compare/{shelf.odd.trajectory}/{shelf.running.trajectory}")
    assert "no end is written" in compared
    assert ", failed," not in compared


def test_group__advantages_are_those_of_the_live_history(shelf: Shelf) -> None:
    bench = Bench(shelf.store, name="twice", group_size=2, batch_min=2, batch_max=2, lag_bound=9)
    bench.start()
    bench.publish()
    for value, episode in enumerate(bench.open(2)):
        bench.finish(episode, value=float(value))
    for advantage in (1.0, 5.0):
        items = bench.claim().items
        ones = np.ones(3, np.float32)
        arrays = [Trained(t.id, ones, None, ones * advantage, None) for item in items for t in item.trajectories]
        bench.commit(items, trained=arrays)
        shelf.store.rows("update agentrl.run set trainer_lease_until = '-infinity' where id = %s returning id", (bench.run,))
        if advantage == 1.0:
            bench.start(owner="another")
    (group,) = shelf.data("/runs/twice/groups")["groups"]
    assert [row["mean_advantage"] for row in shelf.data(f"/groups/{group['grp']}")["trajectories"]] == [5.0, 5.0]


def test_imported__stand_in_the_lists_of_their_own_run(shelf: Shelf) -> None:
    taker = Bench(shelf.store, name="taker", lag_bound=None)
    taker.start()
    taker.publish()
    shelf.store.import_trajectories(taker.run, shelf.plain.run, ImportFilter(max_reward=-0.1))
    assert "1 of plain" in shelf.page("/runs/taker/trajectories")
    path = f"/trajectories/{shelf.odd.trajectory}"
    assert "waits for the trainer" not in shelf.page(path), "it still waits in its own run"
    moves = shelf.data(path)["trajectory"]["events"]
    assert [move["run"] for move in moves if move["from_place"] is None] == ["plain", "taker"]


def test_step__says_what_retention_removed(shelf: Shelf) -> None:
    bench = Bench(shelf.store, name="shrunk", lag_bound=9)
    bench.start()
    bench.publish()
    for episode in bench.open(2):
        bench.finish(episode)
    bench.commit(bench.claim().items)
    (gone, *_) = shelf.data("/runs/shrunk/steps/1")["trajectories"]
    shelf.store.rows("delete from agentrl.trajectory where id = %s::uuid returning id", (gone["trajectory"],))
    assert "1 of them were removed by retention" in shelf.page("/runs/shrunk/steps/1")
    assert len(shelf.data("/runs/shrunk/steps/1")["trajectories"]) == 2


def test_sub_agents__are_reached_from_who_started_them(shelf: Shelf) -> None:
    bench = Bench(shelf.store, name="family", lag_bound=9)
    bench.start()
    bench.publish()
    bench.publish()
    (episode,) = bench.open(1)
    own = child(episode, segments=(segment(0, 0), segment(1, 0)))
    nested = child(episode, 1, parent=own.trajectory, parent_segment=1, segments=(segment(0, 1),))
    shelf.store.write_segment(episode, segment(0, 1), [own, nested])
    shelf.store.complete(episode, graded(1))
    assert f"/trajectories/{own.trajectory}" in shelf.page(f"/trajectories/{episode.trajectory}")
    shown = shelf.page(f"/trajectories/{own.trajectory}")
    assert f"/trajectories/{nested.trajectory}" in shown
    assert "2 turns, policy version 0," in shown
    assert "1 turns, policy version 1," in shelf.page(f"/trajectories/{nested.trajectory}")


def test_query__links_trajectories_and_nothing_else(shelf: Shelf) -> None:
    assert "/trajectories/" not in shelf.page("/queries/versions?run=plain"), "a parent there is a version"
    assert f"/trajectories/{shelf.running.trajectory}" in shelf.page("/queries/stuck?run=plain")


def test_json_link__leads_to_what_is_shown(shelf: Shelf) -> None:
    shown = shelf.page("/runs/plain/trajectories?place=ready&sort=reward&order=asc")
    (link,) = re.findall(r'href="([^"]*format=json)"', shown)
    data = shelf.client.get(html.unescape(link)).json()
    assert [row["trajectory"] for row in data["trajectories"]] == re.findall(r'title="([\w-]{36})"', shown)
    assert f"until={data['until']}" in link


def test_queries__every_saved_query_has_a_page(shelf: Shelf) -> None:
    assert {q["name"] for q in shelf.data("/queries")["queries"]} == set(saved_queries())
    for name, saved in saved_queries().items():
        chosen = f"?trajectory={shelf.odd.trajectory}" if "trajectory" in saved.parameters else "?run=plain"
        rows = shelf.data(f"/queries/{name}{chosen}")["rows"]
        shown = shelf.page(f"/queries/{name}{chosen}")
        assert ("<tbody>" in shown) == bool(rows), name
    assert "give its id" in shelf.page("/queries/timeline")
    assert "no saved query 'x'" in shelf.data("/queries/x", 404)["error"]
    assert shelf.data("/queries/stuck?nothing=1", 400)["error"]
    assert len(shelf.data("/queries/trajectories?run=plain&limit=2")["rows"]) == 2
    assert "Only the first 2 rows" in shelf.page("/queries/trajectories?limit=2")
    assert "limit=x" in shelf.data("/queries/trajectories?limit=x", 400)["error"]


def test_sql_of_a_page__gives_its_rows(shelf: Shelf) -> None:
    path = "/runs/plain/trajectories?place=dropped&sort=reward&task=t"
    statements = statements_of(shelf.page(path))
    (listed,) = [s for s in statements if "order by reward" in s]
    rows = shelf.reader.ask(listed).result.records()
    assert [str(row["trajectory"]) for row in rows] == [row["trajectory"] for row in shelf.data(path)["trajectories"]]
