"""A server that answers like SGLang 0.5.23, in the tests' own process: for what a real one can't be made to do.

The engine's contract suite runs on it as on the real server, so that the two can't drift apart.
"""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import torch

from agentrl.engine.sglang.sums import expected_sums
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import read_tensors

Fault = Callable[[dict[str, Any]], Any]
"""From the right reply to what is sent: another object, an `httpx2.Response`, or an exception that is raised."""
LOGPROB = -0.5


@dataclass
class _Running:
    ids: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    aborted: bool = False


class FakeSGLang(httpx2.AsyncBaseTransport):
    """``faults[path]`` are used up one a request. ``script(ids, n)`` gives the next token, between 0 and 249 by default.

    ``sent``: the names of the tensors of each change of weights.
    """

    def __init__(self, model_dir: Path, *, token_s: float = 0.0) -> None:
        self.token_s = token_s
        self.config = ModelConfig.read(model_dir)
        self.faults: dict[str, list[Fault]] = {}
        self.calls: list[str] = []
        self.served: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.version = "0.5.23"
        self.preferred: dict[str, Any] | None = None
        self.architecture = "LlamaForCausalLM"
        self.cached: set[tuple[int, ...]] = set()
        self.sent: list[list[str]] = []
        self.lives = 0
        self.start()

    def start(self) -> None:
        """Like a process that starts: base weights, nothing running."""
        self.alive, self.paused, self.name = True, False, "default"
        self.sums: dict[str, str] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.running: dict[str, _Running] = {}
        self.lives += 1
        self.cached.clear()

    def die(self) -> None:
        self.alive = False

    def script(self, ids: list[int], n: int) -> int:
        return (sum(ids) * 31 + n * 17) % 250

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(0)  # no network answers at once
        if not self.alive:
            raise httpx2.ConnectError("connection refused")
        path = request.url.path
        self.calls.append(path)
        body = json.loads(await request.aread() or b"{}")
        handle = getattr(self, "_" + path.strip("/"))
        try:
            reply = await handle(body)
        except _Refused as error:
            return httpx2.Response(error.status, json={"error": {"message": str(error)}})
        if self.faults.get(path):
            reply = self.faults[path].pop(0)(reply)
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, httpx2.Response) else httpx2.Response(200, json=reply)

    async def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        prompt, sampling, life = tuple(body["input_ids"]), body["sampling_params"], self.lives
        running = self.running[body["rid"]] = _Running()
        cached = max((n for n in range(len(prompt)) if prompt[:n] in self.cached), default=0)
        finish = await self._play(running, prompt, sampling, life)
        self.running.pop(body["rid"], None)
        self.served.append(running.names[-1] if running.names else "")
        self.cached.update(prompt[:n] for n in range(len(prompt) + 1))
        return {"output_ids": running.ids, "meta_info": self._meta(running, finish, cached, len(prompt))}

    async def _play(self, running: _Running, prompt: tuple[int, ...], sampling: dict[str, Any], life: int) -> dict[str, Any]:
        stops = [] if sampling.get("ignore_eos") else [*sampling.get("stop_token_ids", ()), 2]
        while True:
            await asyncio.sleep(self.token_s)
            while self.paused and self.alive and not running.aborted:
                await asyncio.sleep(0.001)
            if not self.alive or self.lives != life:
                raise httpx2.ReadError("connection reset")
            if running.aborted:
                return {"type": "abort", "message": "Aborted"}
            running.ids.append(self.script([*prompt, *running.ids], len(running.ids)))
            running.names.append(self.name)
            if running.ids[-1] in stops:
                return {"type": "stop", "matched": running.ids[-1]}
            if len(running.ids) == sampling["max_new_tokens"]:
                return {"type": "length", "length": len(running.ids)}

    def _meta(self, running: _Running, finish: dict[str, Any], cached: int, n_prompt: int) -> dict[str, Any]:
        spans: list[dict[str, Any]] = []
        for place, name in enumerate(running.names):
            if not spans or spans[-1]["version"] != name:
                spans.append({"version": name, "start": place, "end": place})
            spans[-1]["end"] = place + 1
        return {
            "finish_reason": finish,
            "prompt_tokens": n_prompt,
            "completion_tokens": len(running.ids),
            "cached_tokens": cached,
            "weight_version": self.name,
            "weight_versions": spans,
            "output_token_logprobs": [[LOGPROB, token, None] for token in running.ids],
            "num_retractions": 0,
            "queue_time": 0.001,
            "e2e_latency": 0.01,
        }

    async def _abort_request(self, body: dict[str, Any]) -> httpx2.Response:
        for rid, running in self.running.items():
            running.aborted |= body.get("abort_all", False) or rid == body.get("rid")
        return httpx2.Response(200)

    async def _server_info(self, body: dict[str, Any]) -> dict[str, Any]:
        context = self.config.max_positions + 2
        return {"version": self.version, "dtype": "float32", "device": "cpu", "tp_size": 1, "max_req_input_len": context}

    async def _model_info(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "weight_version": self.name,
            "architectures": [self.architecture],
            "preferred_sampling_params": self.preferred,
        }

    async def _ready(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.paused:
            raise _Refused("paused", 503)
        return {}

    async def _pause_generation(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["mode"] == "retract"
        self.paused = True
        return {"status": "ok"}

    async def _continue_generation(self, body: dict[str, Any]) -> dict[str, Any]:
        self.paused = False
        return {"status": "ok"}

    async def _update_weights_from_disk(self, body: dict[str, Any]) -> dict[str, Any]:
        files = list(Path(body["model_path"]).glob("*.safetensors"))
        if not files:
            raise _Refused("Failed to load weights", 400)
        await asyncio.sleep(0.01)
        return self._take(dict(read_tensors(files[0])), body)

    async def _begin_weight_update(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"success": True}

    _end_weight_update = _begin_weight_update

    async def _update_weights_from_tensor(self, body: dict[str, Any]) -> dict[str, Any]:
        (data,) = body["serialized_named_tensors"]
        return self._take(dict(pickle.loads(base64.b64decode(data))), body)

    def _take(self, tensors: dict[str, torch.Tensor], body: dict[str, Any]) -> dict[str, Any]:
        assert self.paused, "weights change only while nothing is generated"
        self.sent.append(list(tensors))
        self.tensors |= tensors
        self.sums = expected_sums(self.config, self.tensors, torch.float32)
        self.name = body["weight_version"]
        if body["flush_cache"]:
            self.cached.clear()
        return {"success": True, "message": "Success"}

    async def _weights_checker(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"success": True, "ranks": [{"checksums": self.sums}]}


class _Refused(Exception):
    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
