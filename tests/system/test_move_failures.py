"""Tests of moves that the driver refuses half-way, and of kills between the begin and the end of a move.

The driver's part of a move begins after the coordinator's StartMove and ends with the answer of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ..native.test_shim_transfer_failures import faulty_driver
from ..support.polling import wait_until
from .system_host import MIB, WAIT, GpuProgram, SystemHost
from .test_moves import devices_of, fill, increment, move, refusal_of_move, start_program

SIZE = 60 * MIB
INVALID_VALUE, OUT_OF_MEMORY = 1, 2
LOCK, CHECKPOINT, RESTORE, UNLOCK = (
    f"cuCheckpointProcess{call}" for call in ("Lock", "Checkpoint", "Restore", "Unlock")
)
HELD = 2  # state of the hold in the faulty driver


def start_faulty(host: SystemHost, mode: str = "swap") -> GpuProgram:
    """Start a program on the first device, with a driver that fails on demand."""
    program = host.program("a", driver=faulty_driver(), GPUSHARE_MEMORY_MODE=mode, CUDA_VISIBLE_DEVICES="0")
    return fill(program, SIZE)


def fail(program: GpuProgram, call: str, times: int, code: int) -> None:
    program.run(f"cuda.library.faulty_next({call.encode()!r}, 0, {times}, {code})")


def assert_devices_work(host: SystemHost) -> None:
    """Assert that another program of each device gets a turn there."""
    for number in range(2):
        other = start_program(host, f"other {number}", size=SIZE, device=number)
        assert increment(other) == 8.0
        other.end()


@pytest.mark.parametrize("mode", ["swap", "plain"])
@pytest.mark.parametrize(
    ("call", "times", "code", "error"),
    [
        (LOCK, 1, OUT_OF_MEMORY, "does not checkpoint the process now (CUDA error 2); nothing has changed"),
        (CHECKPOINT, 1, OUT_OF_MEMORY, "could not checkpoint the process (CUDA error 2); nothing has changed"),
        (RESTORE, 2, INVALID_VALUE, "could not move the process (CUDA error 1), which stays on its device"),
        (RESTORE, 1, OUT_OF_MEMORY, "could not move the process (CUDA error 2), which stays on its device"),
    ],
)
def test_a_client_goes_on_after_a_refusal(
    dual_host: SystemHost, mode: str, call: str, times: int, code: int, error: str
) -> None:
    first, second = dual_host.device_uuids()
    program = start_faulty(dual_host, mode)
    fail(program, call, times, code)
    assert error in refusal_of_move(dual_host, "a", second)
    assert devices_of(dual_host, "a") == [first]
    assert increment(program) == 8.0
    assert_devices_work(dual_host)
    assert move(dual_host, "a", second) == {"device": second}
    assert increment(program) == 9.0


def test_a_driver_that_wants_a_map_of_one_device_moves_the_client(dual_host: SystemHost) -> None:
    _, second = dual_host.device_uuids()
    program = start_faulty(dual_host)
    fail(program, RESTORE, 1, INVALID_VALUE)
    assert move(dual_host, "a", second) == {"device": second}
    assert increment(program) == 8.0


@pytest.mark.parametrize(("call", "times"), [(RESTORE, 3), (UNLOCK, 1)])
def test_other_clients_go_on_after_a_process_is_lost_to_the_driver(
    dual_host: SystemHost, call: str, times: int
) -> None:
    """The process itself goes on, and its user gets the advice to restart it."""
    second = dual_host.device_uuids()[1]
    program = start_faulty(dual_host)
    fail(program, call, times, INVALID_VALUE)
    assert "which can no longer use the GPU: restart it" in refusal_of_move(dual_host, "a", second)
    assert program.run("1 + 1") == 2
    assert_devices_work(dual_host)


def hold_move(host: SystemHost, program: GpuProgram) -> tuple[threading.Thread, list[str]]:
    """Request a move, and return when the driver has checkpointed the process and has not restored it yet."""
    program.run(f"cuda.library.faulty_hold_in({CHECKPOINT.encode()!r})")
    found: list[str] = []
    mover = threading.Thread(target=lambda: found.append(refusal_of_move(host, "a", "1")))
    mover.start()
    wait_until(lambda: program.run("cuda.library.faulty_hold(-1)") == HELD)
    return mover, found


def kill_program(host: SystemHost, program: GpuProgram) -> None:
    program.end()


def kill_coordinator(host: SystemHost, program: GpuProgram) -> None:
    host.kill_coordinator()


@pytest.mark.parametrize("kill", [kill_program, kill_coordinator])
def test_a_kill_during_the_drivers_part_loses_nothing(
    dual_host: SystemHost, kill: Callable[[SystemHost, GpuProgram], None]
) -> None:
    """Nothing of the other clients is lost, and nothing of a process that goes on."""
    other = start_program(dual_host, "b", size=SIZE, device=1)
    program = start_faulty(dual_host)
    mover, found = hold_move(dual_host, program)
    kill(dual_host, program)
    mover.join(WAIT)
    assert found
    if kill is kill_coordinator:
        dual_host.start_coordinator()
        wait_until(lambda: dual_host.clients().get("a", {}).get("devices") == [dual_host.device_uuids()[1]])
        assert increment(program) == 8.0
    assert increment(other) == 8.0
    assert_devices_work(dual_host)
