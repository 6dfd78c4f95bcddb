"""`agentrl view` on a real run: its pages show what was sampled, token by token, and it ends when it is told to."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import httpx2
import pytest

from tests.command_line import CommandLine, Running


@pytest.fixture(scope="module")
def viewer(learned: str, command_line: CommandLine) -> Iterator[tuple[Running, httpx2.Client]]:
    running = command_line.start("view", "--port", "0")
    running.wait_for("viewer on http")
    (address,) = re.findall(r"http://[\d.:]+", running.output)
    with httpx2.Client(base_url=address, headers={"Accept": "application/json"}, timeout=60) as client:
        yield running, client
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0
    assert "Traceback" not in running.output


def test_tokens_of_a_trained_trajectory__spell_what_was_sampled(viewer: tuple[Running, httpx2.Client]) -> None:
    _, client = viewer
    (line, *_) = client.get("/runs/learned/trajectories?place=consumed&min_reward=1").json()["trajectories"]
    stored = client.get(f"/trajectories/{line['trajectory']}").json()["trajectory"]
    page = client.get(f"/trajectories/{line['trajectory']}/tokens").json()
    for segment in stored["segments"]:
        own = [token for token in page["tokens"] if token["segment"] == segment["index"]]
        assert (len(own) - segment["n_act"], segment["n_act"]) == (segment["n_obs"], sum(t["kind"] == "trains" for t in own))
        assert "".join(t["text"] for t in own if t["kind"] == "trains").startswith(segment["action_text"])
    sampled = [t["numbers"] for t in page["tokens"] if t["kind"] == "trains"]
    assert page["trained_by"] == {"run": "learned", "step": line["step"]}
    assert page["sums"]["trains"] == len(sampled) == line["actions"]
    for numbers in sampled:
        assert abs(numbers["training log-prob"] - numbers["log-prob"]) < 3
        assert {"value", "advantage", "version"} <= set(numbers)


def test_run_page__has_its_curves(viewer: tuple[Running, httpx2.Client]) -> None:
    _, client = viewer
    html = client.get("/runs/learned", headers={"Accept": "text/html"}).text
    for title in ("reward", "success", "lag", "entropy", "explained variance"):
        assert f"<figcaption>{title} <b>" in html
    assert "the books balance" in html
    assert len(client.get("/runs/learned").json()["evaluations"]) == 2


def test_every_query__on_a_real_run(viewer: tuple[Running, httpx2.Client]) -> None:
    _, client = viewer
    for query in client.get("/queries").json()["queries"]:
        answer = client.get(f"/queries/{query['name']}?run=learned" if query["name"] != "timeline" else "/queries/timeline")
        assert answer.status_code == 200, answer.text


def test_address_that_is_taken__said(viewer: tuple[Running, httpx2.Client], command_line: CommandLine) -> None:
    _, client = viewer
    assert "--port names another port" in command_line.run("view", "--port", str(client.base_url.port), code=3)
