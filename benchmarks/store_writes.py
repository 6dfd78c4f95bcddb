"""Client CPU and wall time of a rollout worker's store calls, on a private server or at a URL.

    python benchmarks/store_writes.py [URL]

Prints milliseconds per call: CPU of this process (the number to trust on a busy machine) and wall time, with one thread and
with 32, whose writes share transactions.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from agentrl.store.connect import open_store
from agentrl.store.contract import RunSpec
from agentrl.types import (
    EpisodeEnd,
    FinishReason,
    Lineage,
    Opened,
    Outcome,
    Reward,
    Sampling,
    Segment,
    Task,
    Termination,
    ToolCall,
    ToolResult,
)

EPISODES = 256
TURNS = 4
LINEAGE = Lineage("tiny", "t", "c", "local", "1", "float32", Sampling())


def _segment(index: int) -> Segment:
    n = 24
    return Segment(
        index=index,
        observation=np.arange(40, dtype=np.int32),
        action=np.arange(n, dtype=np.int32),
        logprobs=-np.ones(n, np.float32),
        versions=np.zeros(n, np.int32),
        finish_reason=FinishReason.STOP,
        observation_text="result: 42\n" * 4,
        action_text="print(6 * 7)",
        action_raw=b"print(6 * 7)",
        tool_calls=(ToolCall("python", {"code": "print(6 * 7)"}),),
        tool_results=(ToolResult("python", "42\n"),),
    )


def _timed(name: str, calls: int, work: Callable[[], None]) -> None:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{name:28s} {calls:6d} calls   {1e3 * cpu / calls:7.3f} ms CPU   {1e3 * wall / calls:7.3f} ms wall")


def main() -> None:
    store, description = open_store(sys.argv[1] if len(sys.argv) > 1 else None)
    print(description)
    spec = RunSpec(f"bench-{uuid.uuid4().hex[:8]}", "bench", {}, "", 1, None, 64, 64, max_running=EPISODES)
    run = store.create_run(spec, {"train": [Task(str(i), {"n": i}) for i in range(1000)]}).id
    trainer = store.start_trainer(run, owner="bench", lease_s=600, checkpoint=None)
    version = store.stage_version(run, trainer.fence, parent=None, updates=0, uri="u", checksum="c").version
    store.publish_version(run, trainer.fence, version)
    end = EpisodeEnd(TURNS, Termination.TERMINATED, Outcome.GRADED, Reward(1.0, True))
    for threads in (1, 32):
        pool = ThreadPoolExecutor(threads)
        episodes: list[Opened] = []

        def open_all(into: list[Opened] = episodes) -> None:
            for _ in range(EPISODES // 32):
                result = store.open_episodes(
                    run, worker="w", request=uuid.uuid4(), n=32, engine_version=version, lineage=LINEAGE
                )
                into.extend(result.episodes)

        def write_all(episodes: list[Opened] = episodes, pool: ThreadPoolExecutor = pool) -> None:
            for turn in range(TURNS):
                segment = _segment(turn)
                list(pool.map(lambda e: store.write_segment(e, segment), episodes))  # noqa: B023

        def complete_all(episodes: list[Opened] = episodes, pool: ThreadPoolExecutor = pool) -> None:
            list(pool.map(lambda e: store.complete(e, end), episodes))

        _timed("open_episodes (32 at a time)", EPISODES, open_all)
        _timed(f"write_segment, {threads} threads", EPISODES * TURNS, write_all)
        _timed(f"complete, {threads} threads", EPISODES, complete_all)
    _timed("claim of 64", 1, lambda: print(len(store.claim(run, trainer.fence, n_min=64, n_max=64, lease_s=60).items), "items"))
    store.close()


if __name__ == "__main__":
    main()
