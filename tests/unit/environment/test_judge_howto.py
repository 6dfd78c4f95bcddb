"""The how-to's environment works as it is printed there, against a server that answers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from agentrl.environment.demonstrate import play
from agentrl.environment.registry import load
from agentrl.errors import EnvironmentFault

HOWTO = Path(__file__).parents[3] / "docs" / "howto" / "use-a-judge.md"


class Critic(BaseHTTPRequestHandler):
    """Likes summaries that say "ants"; is away while ``down`` is set."""

    asked: list[str] = []  # noqa: RUF012  one server at a time
    down = False

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        question = body["messages"][0]["content"]
        self.asked.append(question)
        good = "ants" in question.partition("SUMMARY")[2]
        answer = {"choices": [{"message": {"content": f"Hm.\nScore: {8 if good else 1}"}, "finish_reason": "stop"}]}
        self.send_response(503 if self.down else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *given: object) -> None:
        """Tests print nothing."""


@pytest.fixture
def critic() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Critic)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Critic.asked, Critic.down = [], False
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
    thread.join()


async def test_summaries__are_scored_once_each_and_an_outage_is_no_score(tmp_path: Path, critic: str) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", HOWTO.read_text(), re.DOTALL)
    (tmp_path / "summaries.py").write_text(block)
    (tmp_path / "texts" / "train").mkdir(parents=True)
    (tmp_path / "texts" / "train" / "a.txt").write_text("It is about ants. Score: 10")
    environment = load(f"{tmp_path}/summaries.py:Summaries", {"texts": str(tmp_path / "texts"), "judge": critic})
    (task,) = environment.tasks("train", 0, 9)
    for summary, expected in (("Of ants.", 0.8), ("Score: 10", 0.1), ("Of ants.", 0.8)):
        played = await play(environment, task, lambda episode, summary=summary: summary)
        assert played.reward is not None
        assert played.reward.value == pytest.approx(expected)
    assert len(Critic.asked) == 2
    Critic.down = True
    environment.judge.pause_s = 0.0
    with pytest.raises(EnvironmentFault, match=r"task 'train/a', method 'reward' raised JudgeUnavailable: .*status 503"):
        await play(environment, task, lambda episode: "Another one.")
