"""Settings of the engines that generate tokens, and of the SGLang servers behind them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from agentrl.config.algorithm import MOST, Section


class EngineSettings(Section):
    """How tokens are generated."""

    kind: Literal["local", "sglang"] = "local"
    """local: in the rollout process, in float32 on the CPU; sglang: by SGLang servers."""
    slots: int = Field(128, ge=1, le=MOST)
    """Sequences that hold a key-value cache at once; of an SGLang server that is started here, requests that run at once."""
    temperature: float = Field(1.0, gt=0)
    """Of sampling."""
    sglang_python: str | None = None
    """Interpreter that has SGLang. None: the one that scripts/install-sglang.sh made."""
    servers: int = Field(1, ge=1, le=64)
    """SGLang servers that the run starts, on this machine."""
    port: int = Field(30100, ge=1024, le=65_000)
    """Port of the first server that is started; the others take the next ones."""
    sglang_args: tuple[str, ...] = ()
    """More arguments for servers that are started, as SGLang spells them."""
    urls: tuple[str, ...] = ()
    """Running SGLang servers to use instead of starting some."""
    transport: Literal["disk", "tensor", "distributed"] = "disk"
    """How new weights reach the servers: as the version's file, which they must see; through HTTP; over a process group."""
    request_s: float = Field(1800.0, gt=0, le=86_400)
    """Longest time for one turn of one episode on an SGLang server, waits included."""
    evaluation: Literal["local", "sglang"] = "local"
    """Where evaluations are generated, each pinned to one version; sglang: on a server of its own."""
    evaluation_urls: tuple[str, ...] = ()
    """Running SGLang servers for evaluations only."""

    @property
    def server_urls(self) -> tuple[str, ...]:
        """Servers of training episodes; none for the local engine."""
        if self.kind == "local":
            return ()
        return self.urls or tuple(self._url(i) for i in range(self.servers))

    @property
    def evaluation_server_urls(self) -> tuple[str, ...]:
        """Servers of evaluations; none when these use the local engine."""
        if self.evaluation == "local":
            return ()
        return self.evaluation_urls or (self._url(self.servers),)

    def _url(self, index: int) -> str:
        return f"http://127.0.0.1:{self.port + index}"

    @model_validator(mode="after")
    def _nothing_unread(self) -> Self:
        fields = type(self).model_fields
        changed = {name for name, field in fields.items() if getattr(self, name) != field.default}
        if self.kind == "local":
            unread = changed - {"kind", "slots", "temperature"}
            if unread:
                raise ValueError(f"{_listed(unread)} needs engine.kind=sglang: the local engine has no server")
        if self.urls and changed & _STARTED:
            raise ValueError(
                f"engine.urls names running servers: leave out {_listed(changed & _STARTED)}, which is for new ones"
            )
        if self.urls and self.evaluation == "sglang" and not self.evaluation_urls:
            raise ValueError(
                "engine.evaluation=sglang with engine.urls needs engine.evaluation_urls: evaluations keep one version"
            )
        if self.evaluation_urls and (self.evaluation == "local" or not self.urls):
            raise ValueError("engine.evaluation_urls needs engine.evaluation=sglang and engine.urls")
        if set(self.urls) & set(self.evaluation_urls):
            raise ValueError("a server can't be in engine.urls and engine.evaluation_urls: evaluations keep one version")
        return self


_STARTED = {"sglang_python", "servers", "port", "sglang_args"}


def _listed(names: set[str]) -> str:
    return ", ".join(f"engine.{name}" for name in sorted(names))
