"""What every provider must do, as small checks whose names read as the specification.

    agentrl sandbox check --provider bubblewrap
    agentrl sandbox check --provider my_package.my_module:MyProvider

A check takes a sandbox that was just reset (`SANDBOX_CHECKS`) or the provider (`PROVIDER_CHECKS`) and raises `CheckFailed`.
`run_checks` resets the sandbox after each check: a reset that leaves a doubt is a failure of that check. Checks of what the
provider does not claim are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sandboxes.contract import Capabilities, Provider, Sandbox, SandboxSpec
from sandboxes.self_check import ending, files, inheritance, isolation, jobs, lifecycle, output, running
from sandboxes.self_check.expectations import CheckFailed, expect

__all__ = ["CHECK_SPEC", "PROVIDER_CHECKS", "SANDBOX_CHECKS", "CheckFailed", "applies", "run_checks"]

SandboxCheck = Callable[[Sandbox], Awaitable[None]]
ProviderCheck = Callable[[Provider, SandboxSpec], Awaitable[None]]

CHECK_SPEC = SandboxSpec(memory_mb=320, pids=64)
"""Small enough that hostile checks reach its limits quickly."""

_CHECK_S = 180.0

SANDBOX_CHECKS: dict[SandboxCheck, Callable[[Capabilities], bool] | None] = {
    running.code_runs_as_main_in_the_workspace: None,
    running.an_exception_is_a_result_with_its_line: None,
    running.exit_codes_and_signals_are_told_apart: None,
    running.one_run_does_not_reach_the_next: None,
    running.files_last_from_run_to_run: None,
    running.commands_take_arguments_input_and_environment: None,
    running.standard_input_is_empty: None,
    running.a_command_that_cannot_start_is_a_result: None,
    running.endless_limits_are_refused: None,
    running.commands_start_where_they_are_told: None,
    inheritance.a_run_inherits_what_is_listed: lambda has: has.network_isolated,
    inheritance.signals_keep_their_meaning: None,
    output.output_is_any_bytes: None,
    output.output_is_bounded_with_exact_totals: None,
    output.a_flood_of_output_stays_outside_of_memory: None,
    ending.a_time_out_ends_the_whole_tree: lambda has: has.network_isolated,
    ending.what_a_command_leaves_behind_ends_with_it: lambda has: has.network_isolated,
    ending.files_and_pings_go_on_while_a_command_runs: None,
    ending.overlapping_commands_keep_their_own_output_and_end: None,
    ending.a_silent_command_ends_at_its_own_limit: lambda has: has.network_isolated,
    jobs.jobs_go_on_while_commands_come_and_go: None,
    jobs.jobs_end_by_a_kill: lambda has: has.network_isolated,
    files.files_are_written_and_read: None,
    files.directories_are_listed_and_described: None,
    files.files_out_of_reach_are_refused: None,
    files.paths_that_no_system_takes_are_refused: None,
    isolation.the_workload_has_no_rights: lambda has: has.network_isolated,
    isolation.only_the_writable_places_can_be_written: lambda has: has.network_isolated,
    isolation.there_is_no_network: lambda has: has.network_isolated,
    isolation.dangerous_system_calls_are_denied: lambda has: has.seccomp,
    isolation.a_memory_hog_dies_and_the_sandbox_lives: lambda has: has.memory_limit,
    isolation.a_fork_bomb_ends_with_its_time_out: lambda has: has.pids_limit,
    isolation.full_places_are_the_workloads_own_problem: lambda has: has.network_isolated,
}
"""Each check with the capability it needs."""

PROVIDER_CHECKS: tuple[ProviderCheck, ...] = (
    lifecycle.reset_leaves_nothing,
    lifecycle.jobs_end_with_their_episode,
    lifecycle.a_cancelled_command_does_not_run_in_the_next_episode,
    lifecycle.a_dead_sandbox_is_an_error_not_a_result,
    lifecycle.a_spec_beyond_enforcement_is_refused,
    lifecycle.the_digest_is_stable,
)


def applies(check: SandboxCheck, capabilities: Capabilities) -> bool:
    """Whether a provider with these capabilities has to pass a check."""
    needed = SANDBOX_CHECKS[check]
    return needed is None or needed(capabilities)


async def run_checks(provider: Provider, report: Callable[[str], None] = print) -> int:
    """Run every check that applies; returns how many failed. `SandboxError` when no sandbox can be made at all."""
    failed = 0
    sandbox = await provider.create(CHECK_SPEC)
    try:
        for check in SANDBOX_CHECKS:
            if not applies(check, provider.capabilities):
                report(f"left out  {check.__name__} (the provider does not claim it)")
                continue
            fault = await _fault(_checked(check, provider, sandbox))
            report(f"FAILED    {check.__name__}: {fault}" if fault else f"ok        {check.__name__}")
            failed += fault is not None
            if fault or not provider.capabilities.resets:
                await provider.destroy(sandbox)
                sandbox = await provider.create(CHECK_SPEC)
    finally:
        await provider.destroy(sandbox)
    for provider_check in PROVIDER_CHECKS:
        fault = await _fault(provider_check(provider, CHECK_SPEC))
        report(f"FAILED    {provider_check.__name__}: {fault}" if fault else f"ok        {provider_check.__name__}")
        failed += fault is not None
    return failed


async def _checked(check: SandboxCheck, provider: Provider, sandbox: Sandbox) -> None:
    await check(sandbox)
    if provider.capabilities.resets:
        expect(await provider.reset(sandbox), "a certain reset after the check")


async def _fault(running: Awaitable[None]) -> str | None:
    """What is wrong, None when nothing is. A provider is foreign code: it may raise anything, or never return."""
    try:
        async with asyncio.timeout(_CHECK_S):
            await running
    except CheckFailed as error:
        return str(error)
    except TimeoutError:
        return f"no end within {_CHECK_S:g} s"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
