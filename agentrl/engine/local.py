"""The in-process engine: many requests stepped together in the caller's event loop, on the CPU.

Invariants, each a test of this name:
- ``one_distribution``: a recorded log-prob is that of the named version given the whole prefix, whatever shared the batch.
- ``no_old_cache``: after a load, nothing computed with older weights is used; running generations prefill again.
- ``last_token_is_fed``: the stop token of a turn is in the prefix of the next one.
- ``nobody_waits_for_ever``: more sessions than slots only cost time; a failure of the engine fails every request.
- ``waits_for_the_absent``: a pause ends as soon as no session is between two turns.

A driver task runs while there are requests and gives the loop a turn between steps. Requests join and leave between steps.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from agentrl.engine.contract import EngineInfo, GenerateRequest, Generation
from agentrl.engine.load_log import LoadLog
from agentrl.engine.sampling import check_sampling, draw, uniforms
from agentrl.engine.slots import Slots
from agentrl.engine.traffic import Traffic
from agentrl.engine.transformer import Decoder, KVCache, Rows
from agentrl.errors import BrokenDistribution, EngineError, WeightsCorrupt
from agentrl.model.config import ModelConfig
from agentrl.model.safetensors_io import require_shapes
from agentrl.model.weight_files import model_tensors, verified
from agentrl.monitor.stopwatch import Stopwatch
from agentrl.store.loads import EngineLoad
from agentrl.types import FinishReason, PolicyVersion

NO_VERSION = -1
"""The version before the first load."""

GATHER_S = 0.02
GATHERED = 48
"""A step for few requests costs almost as much as one for many. So while sessions are between two turns, a step for fewer than
`GATHERED` requests is followed by a pause of up to `GATHER_S` seconds in which others may join. It ends early when nobody is
left to wait for, or enough have joined."""

ROWS_PER_STEP = 4096
"""Token rows of one forward at most, so that a long prompt does not hold up everyone else."""


class LocalEngine:
    """Implements `agentrl.engine.contract.Engine` for the model in ``model_dir``; weights come with the first `load`.

    ``slots``: sequences whose cache is kept; ``max_context``: prompt and answer together, in tokens (the model's own limit
    by default); ``threads``: torch threads of this process (more than one only helps on cores that nobody else uses).
    A prompt that leaves no room for ``max_new_tokens`` is refused with `EngineError`; `release` aborts a running turn.
    """

    def __init__(self, model_dir: Path, *, slots: int = 64, max_context: int | None = None, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self._config = ModelConfig.read(Path(model_dir))
        n_context = min(max_context or self._config.max_positions, self._config.max_positions)
        self.info = EngineInfo("local", str(torch.__version__), "float32", "sampled", n_context, reproducible=True)
        self._slots = Slots(slots, n_context)
        self._cache = KVCache(self._config, slots, n_context)
        self._decoder: Decoder | None = None
        self._version = NO_VERSION
        self._waiting: deque[_Job] = deque()
        self._running: dict[int, _Job] = {}
        self._by_session: dict[str, _Job] = {}
        self._driver: asyncio.Task[None] | None = None
        self._gathered = asyncio.Event()
        self._loading = asyncio.Lock()
        self._closed = False
        self._traffic = Traffic()
        self._loads = LoadLog()

    @property
    def version(self) -> int:
        """Version of the weights that would produce the next token; -1 before the first load."""
        return self._version

    async def load(self, version: PolicyVersion) -> None:
        """Read the safetensors files at ``version.uri`` and swap it in between two steps.

        `WeightsCorrupt` when the checksum, a name, a shape or a number is not as it should be; the old weights stay.
        """
        async with self._loading:
            watch, path = Stopwatch(), Path(version.uri)
            try:
                decoder, n_bytes = await asyncio.to_thread(self._read_weights, version, path, watch)
            except WeightsCorrupt as error:
                self._loads.add(EngineLoad("", version.version, phases=watch.seconds, error=str(error)))
                raise
            self._decoder = decoder
            self._version = version.version
            self._slots.invalidate()
            self._loads.add(EngineLoad("", version.version, phases=watch.seconds, bytes=n_bytes))

    def take_loads(self) -> list[EngineLoad]:
        """See `LoadLog`."""
        return self._loads.take()

    async def generate(self, request: GenerateRequest) -> Generation:
        job = self._accept(request)
        self._by_session[request.session] = job
        self._waiting.append(job)
        if self._present() >= GATHERED or not self._absent():
            self._gathered.set()
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive(), name="local engine")
        try:
            generation = await job.answer
            self._traffic.count(len(job.ids), generation)
            return generation
        finally:
            if not job.answer.done() or job.answer.cancelled():
                self._withdraw(job)

    def release(self, session: str) -> None:
        """The session is over: its cache may go, and a turn still running ends with ``FinishReason.ABORT``."""
        job = self._by_session.get(session)
        if job is not None:
            self._abort(job)
        self._slots.forget(session)
        if not self._absent():
            self._gathered.set()

    def metrics(self) -> dict[str, float]:
        """See `Traffic`."""
        return self._traffic.metrics()

    async def close(self) -> None:
        """End every request with ``FinishReason.ABORT``; later ones are refused."""
        self._closed = True
        for job in list(self._by_session.values()):
            self._abort(job)
        if self._driver is not None:
            await self._driver

    def _accept(self, request: GenerateRequest) -> _Job:
        check_sampling(request.sampling)
        ids = np.asarray(request.token_ids, dtype=np.int64)
        where = f"session {request.session}"
        if self._closed or self._decoder is None:
            raise EngineError(f"{where}: the engine {'is closed' if self._closed else 'has no weights; load a version first'}")
        if request.session in self._by_session:
            raise EngineError(f"{where}: a turn of this session is running already")
        if not len(ids) or ids.min() < 0 or ids.max() >= self._config.vocab_size:
            raise EngineError(f"{where}: the prompt is empty or holds ids outside of [0, {self._config.vocab_size})")
        if request.max_new_tokens < 1 or len(ids) + request.max_new_tokens > self.info.max_context:
            raise EngineError(
                f"{where}: {len(ids)} prompt tokens and max_new_tokens={request.max_new_tokens} do not fit "
                f"a context of {self.info.max_context}"
            )
        return _Job(request, ids)

    async def _drive(self) -> None:
        try:
            while self._waiting or self._running:
                self._admit()
                self._step()
                await self._gather()
        except Exception as error:  # the driver's boundary: whatever stops it must not leave a request waiting
            for job in list(self._by_session.values()):
                failure = EngineError(f"session {job.request.session}: the engine failed: {error!r}")
                failure.__cause__ = error
                self._fail(job, failure)

    async def _gather(self) -> None:
        """Let others run, then wait for some of the absent sessions."""
        await asyncio.sleep(0)
        pause = GATHER_S * (1 - self._present() / GATHERED)
        if pause <= 0 or not self._absent():
            return
        self._gathered.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._gathered.wait()

    def _present(self) -> int:
        return len(self._running) + len(self._waiting)

    def _absent(self) -> bool:
        """Whether a session is between two turns. One that waits for its step still rests in its slot, and is here."""
        return any(session not in self._by_session for session in self._slots.resting)

    def _admit(self) -> None:
        """First come, first served."""
        while self._waiting:
            job = self._waiting[0]
            slot = self._slots.take(job.request.session)
            if slot is None:
                return
            self._waiting.popleft()
            job.slot, job.admitted = slot, time.monotonic()
            self._running[slot] = job  # before anything that may fail: `_leave` must find it in the queue or here
            request = job.request
            draws = uniforms(request.seed, request.max_new_tokens)
            job.cached = self._slots.begin(
                slot, job.ids, request.max_new_tokens, draws, request.sampling.temperature, request.stop_token_ids
            )

    def _step(self) -> None:
        """One forward for everyone: feed what is known and not cached, sample for those that are then complete."""
        decoder = self._decoder
        if not self._running or decoder is None:
            return
        s = self._slots
        slots, counts = self._plan_rows()
        starts = s.cached[slots]
        position = np.arange(int(counts.sum())) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        rows = Rows(slots, starts, counts, s.ids[np.repeat(slots, counts), position])
        logits = decoder.forward(rows, self._cache)
        s.cached[slots] = starts + counts
        complete = s.cached[slots] == s.length[slots]
        if not complete.all():
            slots, logits = slots[complete], logits[torch.from_numpy(complete)]
        if len(slots):
            self._sample(slots, logits)

    def _plan_rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Slots and their row counts, those with one row first and by slot, then in order of arrival; the rest waits."""
        slots = np.fromiter(self._running, dtype=np.int64, count=len(self._running))
        counts = self._slots.length[slots] - self._slots.cached[slots]
        if counts.max() == 1:
            slots.sort()
            return slots, counts
        order = np.argsort(counts != 1, kind="stable")
        slots, counts = slots[order], counts[order]
        allowed = np.minimum(counts, np.maximum(ROWS_PER_STEP - (np.cumsum(counts) - counts), 0))
        served = allowed > 0
        slots, counts = slots[served], allowed[served]
        order = np.lexsort((np.where(counts == 1, slots, 0), counts != 1))
        return slots[order], counts[order]

    def _sample(self, slots: np.ndarray, logits: torch.Tensor) -> None:
        s = self._slots
        at = s.length[slots]
        tokens, logprobs = draw(logits, s.temperature[slots], s.uniforms[slots, at])
        s.ids[slots, at] = tokens
        s.logprobs[slots, at] = logprobs
        s.versions[slots, at] = self._version
        s.length[slots] = at + 1
        stopped = (tokens[:, None] == s.stops[slots]).any(1)
        broken = ~np.isfinite(logprobs)
        ended = stopped | broken | (at + 1 == s.limit[slots])
        for i in np.flatnonzero(ended):
            job = self._running[int(slots[i])]
            if broken[i]:
                self._fail(job, self._broken(job))
            else:
                self._finish(job, FinishReason.STOP if stopped[i] else FinishReason.LENGTH)

    def _finish(self, job: _Job, reason: FinishReason) -> None:
        """Answer with what the slot holds after the prompt."""
        slot, now = self._leave(job), time.monotonic()
        s = self._slots
        new = slice(len(job.ids), int(s.length[slot])) if slot is not None else slice(0, 0)
        row = slot if slot is not None else 0
        admitted = job.admitted if slot is not None else now
        if not job.answer.done():
            job.answer.set_result(
                Generation(
                    token_ids=s.ids[row, new].astype(np.int32),
                    logprobs=s.logprobs[row, new].copy(),
                    versions=s.versions[row, new].copy(),
                    finish_reason=reason,
                    cached_tokens=job.cached,
                    queue_s=admitted - job.submitted,
                    generate_s=now - admitted,
                )
            )

    def _broken(self, job: _Job) -> BrokenDistribution:
        where = f"session {job.request.session}"
        return BrokenDistribution(f"{where}: version {self._version} gave a distribution that is not finite")

    def _fail(self, job: _Job, error: EngineError) -> None:
        self._leave(job)
        if not job.answer.done():
            job.answer.set_exception(error)

    def _abort(self, job: _Job) -> None:
        self._finish(job, FinishReason.ABORT)

    def _withdraw(self, job: _Job) -> None:
        """The caller was cancelled."""
        if self._by_session.get(job.request.session) is job:
            self._leave(job)

    def _leave(self, job: _Job) -> int | None:
        """Take a job out of queue or slot; the slot (None: it had none) keeps the session's cache."""
        session = job.request.session
        self._by_session.pop(session, None)
        if job.slot is None:
            self._waiting.remove(job)
            return None
        del self._running[job.slot]
        self._slots.rest(session, job.slot)
        return job.slot

    def _read_weights(self, version: PolicyVersion, path: Path, watch: Stopwatch) -> tuple[Decoder, int]:
        """And the bytes that were read."""
        try:
            with watch.phase("checksum"):
                files = verified(path, version.checksum)
        except WeightsCorrupt as error:
            raise WeightsCorrupt(f"version {version.version}: {error}") from error
        with watch.phase("read"):
            tensors = dict(model_tensors(files, self._config))
        with watch.phase("check"):
            require_shapes({name: tuple(t.shape) for name, t in tensors.items()}, self._config.tensor_shapes(), str(path))
            broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
        if broken:
            raise WeightsCorrupt(f"version {version.version}: {path}: not finite: {', '.join(broken[:5])}")
        with watch.phase("build"):
            return Decoder(self._config, tensors, self.info.max_context), sum(t.nbytes for t in tensors.values())


class _Job:
    """A request on its way through the engine."""

    def __init__(self, request: GenerateRequest, ids: np.ndarray) -> None:
        self.request = request
        self.ids = ids
        self.answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self.submitted = time.monotonic()
        self.admitted = 0.0
        self.slot: int | None = None
        self.cached = 0
