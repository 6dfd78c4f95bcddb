"""One JSON log a process. Each line carries the gauges step, policy_version, queue_length and hit_rate, whatever it says."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import structlog


class ProcessLog:
    """Writes ``<folder>/<role>.jsonl``, appending, one object a line; non-finite numbers are written as strings."""

    def __init__(self, folder: Path, role: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{role}.jsonl"
        self._file = self.path.open("a", buffering=1)
        self._gauges: dict[str, Any] = {"step": None, "policy_version": None, "queue_length": None, "hit_rate": None}
        self._logger = structlog.wrap_logger(
            structlog.WriteLogger(self._file),
            processors=[
                self._add_gauges,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                _finite,
                structlog.processors.JSONRenderer(),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            role=role,
        )

    def gauge(self, **values: Any) -> None:
        """Update what every later line carries; only the four gauges exist."""
        unknown = set(values) - set(self._gauges)
        if unknown:
            raise ValueError(f"not a gauge: {', '.join(sorted(unknown))}")
        self._gauges.update(values)

    def info(self, event: str, **fields: Any) -> None:
        self._logger.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._logger.warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Also records the exception being handled, if any."""
        self._logger.error(event, exc_info=sys.exc_info()[0] is not None, **fields)

    def cpu(self, event: str, **fields: Any) -> None:
        """Also says how much CPU time, in seconds, this process and its ended children have used."""
        own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = {"cpu_s": own.ru_utime + own.ru_stime, "children_cpu_s": ended.ru_utime + ended.ru_stime}
        self._logger.info(event, **{name: round(seconds, 2) for name, seconds in spent.items()}, **fields)

    def close(self) -> None:
        self._file.close()

    def _add_gauges(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in self._gauges.items():
            event.setdefault(name, value)
        return event


def _finite(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            event[name] = str(value)
    return event
