"""The filter program, run by a small interpreter of the kernel's filter machine."""

from __future__ import annotations

import errno
import struct

import pytest

from sandboxes.agent import syscall_filter

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def decide(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    data = struct.pack("<IIQ6Q", number, architecture, 0, *[*arguments, *[0] * (6 - len(arguments))])
    code = [struct.unpack_from("HBBI", program, offset) for offset in range(0, len(program), 8)]
    accumulator = position = 0
    while True:
        operation, if_true, if_false, value = code[position]
        position += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
            continue
        holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
        position += if_true if holds else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize("only_itself", [False, True])
def test_denied_calls__fail_and_all_others_pass(machine: str, only_itself: bool) -> None:
    program = syscall_filter.program(machine, only_itself=only_itself)
    here = ARCHITECTURES[machine]
    denied = {*syscall_filter._DENIED[machine].values(), *syscall_filter._DENIED_EVERYWHERE.values()}
    for number in range(460):
        expected = ERRNO | errno.EPERM if number in denied else ALLOW
        if number == 435:
            expected = ERRNO | errno.ENOSYS
        assert decide(program, here, number) == expected, number


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_clone__passes_for_threads_and_processes_only(machine: str) -> None:
    program, here = syscall_filter.program(machine), ARCHITECTURES[machine]
    clone = syscall_filter._CLONE[machine]
    assert decide(program, here, clone, 0x3D0F00) == ALLOW  # a thread
    assert decide(program, here, clone, 0x1200011) == ALLOW  # fork
    for namespace in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(program, here, clone, namespace | 17) == ERRNO | errno.EPERM


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_changes_of_other_processes__fail_only_when_asked_for(machine: str) -> None:
    here = ARCHITECTURES[machine]
    for name, number in syscall_filter._TARGETS_OTHERS[machine].items():
        target = (0, 7) if name == "setpriority" else (7, 0)
        assert decide(syscall_filter.program(machine), here, number, *target) == ALLOW
        strict = syscall_filter.program(machine, only_itself=True)
        assert decide(strict, here, number, *target) == ERRNO | errno.EPERM
        assert decide(strict, here, number, 0, 0) == ALLOW


def test_foreign_architecture_or_x32__is_killed() -> None:
    program = syscall_filter.program("x86_64")
    assert decide(program, 0x40000003, 11) == KILL
    assert decide(program, ARCHITECTURES["x86_64"], 0x40000000 + 1) == KILL


def test_unknown_machine__is_not_claimed() -> None:
    assert not syscall_filter.supported("pdp11")
