"""The boundary between the library and an environment's code: limits its time and names its faults.

Only three kinds of exception cross it: `SandboxError` (infrastructure), `EnvironmentFault`, and those the caller asks for.
A cancellation of the task itself crosses it, too; a `CancelledError` that the environment's code comes by otherwise does not.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from agentrl.environment.code_places import defined_at, raised_at
from agentrl.environment.limits import limited
from agentrl.errors import EnvironmentFault
from sandboxes.contract import SandboxError


class Overtime(EnvironmentFault):
    """Environment code did not return within its limit."""


@contextmanager
def named_faults(environment: str, task: str, method: str, *passing: type[Exception]) -> Iterator[None]:
    """Turn what the environment's code raises into an `EnvironmentFault` that names environment, task, method and place."""
    where = f"environment {environment!r}, task {task!r}, method {method!r}"
    try:
        yield
    except asyncio.CancelledError as error:
        if _is_cancelled():
            raise
        raise EnvironmentFault(f"{where} raised CancelledError{raised_at(error)}") from error
    except (Exception, SystemExit) as error:
        if type(error) is EnvironmentFault and not str(error).startswith("environment "):
            raise EnvironmentFault(f"{where}: {error}{raised_at(error)}") from error
        if isinstance(error, (SandboxError, EnvironmentFault, *passing)):
            raise
        raise EnvironmentFault(f"{where} raised {type(error).__name__}: {error}{raised_at(error)}") from error


def _is_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return False
    return task is not None and task.cancelling() > 0


async def invoke(
    environment: str,
    task: str,
    method: str,
    function: Callable[..., Any],
    *args: Any,
    timeout_s: float,
    passing: tuple[type[Exception], ...] = (),
) -> Any:
    """Call ``function`` (sync ones in a thread of their own) within ``timeout_s`` seconds; `Overtime` after that.

    Waiting for a sandbox does not count. A sync function can't be stopped: its thread is left behind as a daemon, so slow work
    belongs in the sandbox.
    """
    with named_faults(environment, task, method, *passing):
        limit = None
        try:
            async with limited(timeout_s) as limit:
                if inspect.iscoroutinefunction(function):
                    return await function(*args)
                result = await in_daemon_thread(lambda: function(*args))
                return await result if inspect.isawaitable(result) else result
        except TimeoutError as error:
            if limit is None or not limit.expired:
                raise
            raise Overtime(
                f"environment {environment!r}, task {task!r}, method {method!r} did not return within {timeout_s:g} s"
                f"{defined_at(function)}"
            ) from error


async def in_daemon_thread(call: Callable[[], Any]) -> Any:
    """Run a blocking call that nothing waits for at exit, should it never return."""
    # Not the loop's executor: its threads are limited and joined at exit, so one that hangs would stop the worker.
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def deliver(value: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_result((value, error))

    def run() -> None:
        value, error = None, None
        try:
            value = call()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop closed while a forgotten call was running
            loop.call_soon_threadsafe(deliver, value, error)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True, name="environment-call").start()
    value, error = await done
    if error is not None:
        raise error
    return value
