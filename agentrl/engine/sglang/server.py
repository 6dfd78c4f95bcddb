"""One SGLang server over HTTP: its endpoints, and what can go wrong with each as typed errors.

Servers of 0.5.21 or newer are understood (`OLDEST`); 0.5.23 is the one the tests run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
from packaging.version import InvalidVersion, Version

from agentrl.errors import EngineError, UsageError, WrongAnswer

OLDEST = Version("0.5.21")
"""The first with versions per token and with a bracket around pushed weights."""
CONTROL_S = 120.0
"""Longest wait for an answer to a control request: large weights take their time."""
SENT = frozenset({"temperature", "max_new_tokens", "no_stop_trim", "skip_special_tokens"})
"""Sampling settings that every request names; others fall back to what the server was started with."""
PROBE_S = 10.0
CONNECT_S = 5.0


class ServerGone(EngineError):
    """No connection, one that broke, or a server that is starting or ending: repeating elsewhere is safe."""


class ServerRefused(EngineError):
    """The server is there and said no; ``args[1]`` is the HTTP status."""

    @property
    def status(self) -> int:
        return int(self.args[1])


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself. ``max_context``: prompt and answer together, in tokens."""

    version: str
    dtype: str
    device: str
    tp_size: int
    max_context: int
    architectures: tuple[str, ...]


class Server:
    """The server at ``url``. ``transport`` replaces the network in tests."""

    def __init__(self, url: str, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=30.0)
        timeout = httpx2.Timeout(None, connect=CONNECT_S)
        self._client = httpx2.AsyncClient(
            base_url=self.url, limits=limits, timeout=timeout, transport=transport, trust_env=False
        )

    async def info(self) -> ServerInfo:
        """`UsageError` when the server is too old, or was started to sample otherwise than requests say."""
        found = await self._get("/server_info")
        model = await self._get("/model_info")
        try:
            info = ServerInfo(
                version=str(found["version"]),
                dtype=str(found["dtype"]),
                device=str(found["device"]),
                tp_size=int(found["tp_size"]),
                max_context=int(found["max_req_input_len"]),
                architectures=tuple(model["architectures"]),
            )
            old = Version(info.version) < OLDEST
        except (KeyError, TypeError, ValueError, InvalidVersion) as error:
            raise UsageError(f"{self.url} is not an SGLang server of version {OLDEST} or newer: {error!r}") from error
        if old:
            raise UsageError(f"{self.url} runs SGLang {info.version}; {OLDEST} or newer is needed")
        if preferred := sorted(set(model.get("preferred_sampling_params") or ()) - SENT):
            raise UsageError(
                f"{self.url} was started with --preferred-sampling-params that set {', '.join(preferred)}: its tokens would be "
                "of another distribution than its log-probs; start it without them"
            )
        return info

    async def weight_version(self) -> str:
        """Name of the weights it holds. Answers while the server is paused, too: who answers is alive."""
        name = (await self._get("/model_info")).get("weight_version")
        if name is None:
            raise WrongAnswer(f"{self.url}/model_info names no weight_version: it is no SGLang server of {OLDEST} or newer")
        return str(name)

    async def ready(self) -> bool:
        """False while it starts, ends or is paused."""
        try:
            await self._send("GET", "/ready", None, PROBE_S)
        except ServerRefused:
            return False
        except ServerGone as error:
            if isinstance(error.__cause__, httpx2.RequestError):
                raise
            return False
        return True

    async def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """One request; waits as long as the server takes. The reply as it came."""
        return await self._send("POST", "/generate", body, None)

    async def abort(self, rid: str) -> None:
        """End a request; no error when the server does not know it (any more)."""
        await self._send("POST", "/abort_request", {"rid": rid}, PROBE_S)

    async def pause(self) -> None:
        """Stop between two tokens. Running requests lose their cache, not their tokens, and go on after `resume`."""
        await self._post("/pause_generation", {"mode": "retract"})

    async def resume(self) -> None:
        """Nothing happens when it is not paused."""
        await self._post("/continue_generation", {})

    async def load_from_disk(self, folder: str, name: str) -> None:
        """Read the safetensors files in ``folder``, a path on the server's machine, and drop all cache."""
        await self._post("/update_weights_from_disk", {"model_path": folder, "weight_version": name, "flush_cache": True})

    async def load_pickled(self, tensors: str, name: str, tp_size: int) -> None:
        """``tensors``: base64 of a pickled list of (HF name, tensor on the CPU)."""
        body = {"serialized_named_tensors": [tensors] * tp_size, "weight_version": name, "flush_cache": True}
        await self._between("/update_weights_from_tensor", body)

    async def load_broadcast(self, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]],
                             group: str, name: str) -> None:  # fmt: skip
        """Receive the tensors, in this order, from rank 0 of the group; returns after the last one."""
        body = {"names": list(names), "dtypes": list(dtypes), "shapes": [list(s) for s in shapes], "group_name": group,
                "weight_version": name, "flush_cache": True}  # fmt: skip
        await self._between("/update_weights_from_distributed", body)

    async def join_group(self, host: str, port: int, *, first_rank: int, world_size: int, group: str, backend: str) -> None:
        """Become ranks ``first_rank`` and up of a process group; returns once all its members have joined."""
        body = {"master_address": host, "master_port": port, "rank_offset": first_rank, "world_size": world_size,
                "group_name": group, "backend": backend}  # fmt: skip
        await self._post("/init_weights_update_group", body)

    async def checksums(self) -> list[dict[str, str]]:
        """By rank: sum of each tensor, by the server's own names."""
        reply = await self._post("/weights_checker", {"action": "checksum"})
        try:
            return [dict(rank["checksums"]) for rank in reply["ranks"]]
        except (KeyError, TypeError, ValueError) as error:
            raise WrongAnswer(f"{self.url}/weights_checker: the answer is malformed: {error!r}") from error

    async def close(self) -> None:
        await self._client.aclose()

    async def _between(self, path: str, body: dict[str, Any]) -> None:
        await self._post("/begin_weight_update", {})
        try:
            await self._post(path, body)
        finally:
            await self._post("/end_weight_update", {})

    async def _get(self, path: str) -> dict[str, Any]:
        return await self._send("GET", path, None, PROBE_S)

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = await self._send("POST", path, body, CONTROL_S)
        if reply.get("success") is False:
            raise ServerRefused(f"{self.url}{path}: {reply.get('message')}", 200)
        return reply

    async def _send(self, method: str, path: str, body: dict[str, Any] | None, timeout_s: float | None) -> dict[str, Any]:
        timeout = httpx2.Timeout(timeout_s, connect=CONNECT_S)
        try:
            response = await self._client.request(method, path, json=body, timeout=timeout)
        except httpx2.RequestError as error:
            raise ServerGone(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        if response.status_code == 503:
            raise ServerGone(f"{self.url}{path}: HTTP 503: {_message(response)}")
        if response.status_code >= 400:
            raise ServerRefused(f"{self.url}{path}: HTTP {response.status_code}: {_message(response)}", response.status_code)
        return _json(response, f"{self.url}{path}")


def _json(response: httpx2.Response, where: str) -> dict[str, Any]:
    """The object in the body; {} for none."""
    if "json" not in response.headers.get("content-type", ""):
        return {}
    try:
        parsed = response.json()
    except (ValueError, RecursionError) as error:
        raise WrongAnswer(f"{where}: the answer is not JSON: {response.text:.200}") from error
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise WrongAnswer(f"{where}: the answer is a JSON {type(parsed).__name__}, not an object")
    return parsed


def _message(response: httpx2.Response) -> str:
    """Its own words, whichever way it wraps them, on one line."""
    try:
        error = response.json()
        while isinstance(error, dict):
            error = error.get("error") or error.get("message") or str(error)
    except (ValueError, RecursionError):
        error = response.text
    return re.sub(r"\s+", " ", str(error))[:500]
