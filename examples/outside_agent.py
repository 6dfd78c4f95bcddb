"""An agent program of its own, trained through the gateway: it knows OpenAI's client and its reward, nothing of agentrl.

    agentrl train --env code_agent --name outside rollout.workers=0 &
    agentrl gateway --run outside &
    pip install openai
    python examples/outside_agent.py http://127.0.0.1:8080 500

The agent has one try at a task of `code_agent` and is rewarded for a short answer. Replace `act` and `score` by your own.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from openai import OpenAI


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def open_episode(gateway: str) -> Any | None:
    """The next episode; None when the run is over. Waits while the run has no room for one."""
    while True:
        try:
            return post(f"{gateway}/episodes", {})
        except urllib.error.HTTPError as error:
            code = json.load(error)["error"]["code"]
            if code in ("target_reached", "run_not_running"):
                return None
            if code not in ("no_capacity", "too_many_episodes"):
                raise
            time.sleep(0.2)


def act(client: OpenAI, task: dict[str, Any]) -> str:
    """One question, one answer."""
    question = f"Task {task['id']}: answer briefly."
    answer = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": question}], max_tokens=24)
    return answer.choices[0].message.content or ""


def score(answer: str) -> float:
    """Between 0 and 1: the shorter the better."""
    return 1.0 / (1.0 + len(answer) / 20)


def main(gateway: str, episodes: int) -> None:
    for n in range(episodes):
        opened = open_episode(gateway)
        if opened is None:
            print(f"the run is over after {n} episodes")
            return
        client = OpenAI(base_url=opened["base_url"], api_key="not needed")
        ending: dict[str, float | str]
        try:
            ending = {"reward": score(act(client, opened["task"]))}
        except Exception as error:
            ending = {"error": f"{type(error).__name__}: {error}"}  # no verdict on the policy
        post(f"{gateway}/episodes/{opened['episode']}/end", ending)


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        sys.exit("usage: python examples/outside_agent.py GATEWAY_URL EPISODES")
    main(sys.argv[1].rstrip("/"), int(sys.argv[2]))
