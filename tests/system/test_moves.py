"""Tests of moves of clients to other devices, on a host with two simulated devices and the shipped defaults."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client, CoordinatorError

from ..support.polling import wait_until
from .notebook_client import Notebook
from .system_host import MIB, WAIT, GpuProgram, SystemHost, last_end, start_all_busy, stop_all

SIZE = 100 * MIB
CHECKPOINTED = 2  # state of a process
INVALID_HANDLE = 400
UUID = """
import ctypes
def uuid():
    value = ctypes.create_string_buffer(16)
    check(cuda.cuDeviceGetUuid_v2(value, 0))
    return value.raw.hex()
"""
ONE_TYPE_BY_NAME = """
[device]
name = Alike
memory = 256 MiB
[device]
name = Alike
memory = 256 MiB
multiprocessors = 7
"""


def devices_of(host: SystemHost, client: str) -> list[str]:
    return list(host.clients()[client]["devices"])


def start_program(host: SystemHost, client: str, mode: str = "swap", size: int = SIZE, device: int = 0) -> GpuProgram:
    """Start a program whose array has the value 7 on the device."""
    return fill(host.program(client, GPUSHARE_MEMORY_MODE=mode, CUDA_VISIBLE_DEVICES=str(device)), size)


def fill(program: GpuProgram, size: int = SIZE) -> GpuProgram:
    program.run(f"{UUID}\nsize = {size}\nvalue, array = ctypes.c_float(), cuda.alloc(size)[1]", WAIT)
    program.run("check(cuda.launch('fill_f32', array, 7.0, size // 4) or cuda.cuCtxSynchronize())", WAIT)
    return program


def increment(program: GpuProgram) -> float:
    """Add 1 to the array on the device, and return its last value."""
    program.run("check(cuda.launch('work_f32', array, size // 4, 0, 0) or cuda.cuCtxSynchronize())", WAIT)
    last = "byref(value), c_uint64(array + size - 4), c_size_t(4)"
    return float(program.run(f"check(cuda.cuMemcpyDtoH_v2({last})) or value.value", WAIT))


def move(host: SystemHost, client: str, device: str) -> Any:
    with Client(host.socket, timeout=WAIT) as connection:
        return connection.request(messages.Move(client=client, device=device))


def wait_for_move(host: SystemHost, client: str) -> None:
    """Wait until the client waits for a turn on both devices."""
    wait_until(lambda: len(devices_of(host, client)) == 2)


def refusal_of_move(host: SystemHost, client: str, device: str) -> str:
    with pytest.raises(CoordinatorError) as refused:
        move(host, client, device)
    return str(refused.value)


@pytest.mark.parametrize("mode", ["swap", "plain"])
def test_a_client_moves_with_its_memory(dual_host: SystemHost, mode: str) -> None:
    first, second = dual_host.device_uuids()
    program = start_program(dual_host, "a", mode)
    before = program.run("uuid()")
    assert devices_of(dual_host, "a") == [first]
    contexts = wait_until(lambda: dual_host.clients()["a"]["context_memory"])
    assert move(dual_host, "a", "1") == {"device": second}
    wait_until(lambda: devices_of(dual_host, "a") == [second] and dual_host.clients()["a"]["processes"])
    assert dual_host.clients()["a"]["context_memory"] == contexts
    assert program.run("uuid()") != before
    assert increment(program) == 8.0
    wait_until(lambda: dual_host.clients()["a"]["resident_by_device"] == {second: SIZE})
    assert move(dual_host, "a", first) == {"device": first}
    wait_until(lambda: devices_of(dual_host, "a") == [first])
    assert program.run("uuid()") == before
    assert increment(program) == 9.0


QUERY = f"""
import os, threading
stream, state, found = c_void_p(cuda.stream(1)), ctypes.c_int(), []
def query():
    while state.value != {CHECKPOINTED}:
        cuda.cuCheckpointProcessGetState(os.getpid(), byref(state))
    found.extend([cuda.cuStreamQuery(stream), cuda.cuEventQuery(None), state.value])
thread = threading.Thread(target=query)
thread.start()
"""


def test_a_client_moves_while_a_thread_queries_a_stream(dual_host: SystemHost) -> None:
    """On a card, such a query of a checkpointed process ended the process.

    The client moves until the thread has run during a checkpoint, which a busy machine may prevent in one move.
    """
    devices = dual_host.device_uuids()
    program = start_program(dual_host, "a", "plain")
    program.run(QUERY)
    moves = itertools.cycle((1, 0))

    def has_queried() -> bool:
        number = next(moves)
        assert move(dual_host, "a", str(number)) == {"device": devices[number]}
        return not program.run("thread.is_alive()")

    wait_until(has_queried)
    assert program.run("found") == [0, INVALID_HANDLE, CHECKPOINTED]
    assert increment(program) == 8.0


def test_a_client_at_work_moves_between_clients_at_work(dual_host: SystemHost) -> None:
    """The move takes a turn on both devices, and no client computes a wrong value."""
    second = dual_host.device_uuids()[1]
    mover, here, there = (
        start_program(dual_host, "mover"),
        start_program(dual_host, "here"),
        start_program(dual_host, "there", device=1),
    )
    start_all_busy(mover, here, there)
    assert move(dual_host, "mover", second) == {"device": second}
    moved_at = max(execution.end_ns for execution in dual_host.launches(mover))
    wait_until(lambda: dual_host.took_turns_since(moved_at, mover, there))
    wait_until(lambda: dual_host.worked_since(moved_at, here))
    stop_all(mover, here, there)
    assert devices_of(dual_host, "mover") == [second]
    assert [increment(program) for program in (mover, here, there)] == [8.0, 8.0, 8.0]


def test_a_notebook_keeps_its_state(dual_host: SystemHost, used_notebook: Notebook) -> None:
    notebook = used_notebook
    (here,) = devices_of(dual_host, notebook.client_id)
    (there,) = {*dual_host.device_uuids()} - {here}
    done = dual_host.command("move", notebook.client_id, there)
    assert (done.returncode, done.stderr) == (0, "")
    sentence = f"the client is on device {there} now; memory on the host returns with its next turn"
    assert done.stdout.endswith(f": {sentence}\n")
    notebook.run("work(0.1)")
    assert notebook.value("answer") == 42
    assert devices_of(dual_host, notebook.client_id) == [there]


def test_a_notebook_moves_itself(dual_host: SystemHost, used_notebook: Notebook) -> None:
    notebook = used_notebook
    uuids = dual_host.device_uuids()
    (here,) = devices_of(dual_host, notebook.client_id)
    (there,) = {*uuids} - {here}
    text = notebook.run(f"%gpushare move '{uuids.index(there)}'")
    assert text == f"This kernel is on device {there} now. Memory on the host returns with its next turn.\n"
    assert devices_of(dual_host, notebook.client_id) == [there]
    notebook.run("work(0.1)\nimport jupyter_gpushare as gs")
    assert notebook.value(f"gs.move({uuids.index(here)})") == here
    assert notebook.value("answer") == 42


@pytest.mark.parametrize(
    ("mode", "code", "reason"),
    [
        ("unified", "", "has memory mode unified"),
        ("swap", "check(cuda.alloc(1 << 20, 'cuMemAllocManaged', 1)[0])", "has asked for unified memory"),
        ("plain", "check(cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), c_uint64(array)))", "shares device"),
    ],
)
def test_a_client_that_the_driver_cannot_move_stays(dual_host: SystemHost, mode: str, code: str, reason: str) -> None:
    first, second = dual_host.device_uuids()
    program = start_program(dual_host, "a", mode)
    if code:
        program.run(code)
    program.busy()
    assert reason in refusal_of_move(dual_host, "a", second)
    assert devices_of(dual_host, "a") == [first]
    refused_at = last_end(dual_host.launches(program))
    wait_until(lambda: dual_host.worked_since(refused_at, program))
    program.stop()
    assert increment(program) == 8.0


def test_a_client_stays_if_the_driver_refuses_its_new_device(host: SystemHost) -> None:
    host.config = host.folder / "devices.conf"
    host.config.write_text(ONE_TYPE_BY_NAME)
    host.start_coordinator()
    first, second = host.device_uuids()
    program = start_program(host, "a")
    assert "could not move the process (CUDA error 1), which stays on its device" in refusal_of_move(host, "a", second)
    assert devices_of(host, "a") == [first]
    assert increment(program) == 8.0
    assert increment(start_program(host, "other", device=1)) == 8.0, "the other device is free again"


@pytest.mark.parametrize("device", [0, 1])
def test_a_client_stays_beside_clients_that_allocate_without_a_turn(dual_host: SystemHost, device: int) -> None:
    first, second = dual_host.device_uuids()
    program, plain = start_program(dual_host, "a"), start_program(dual_host, "plain", "plain", 60 * MIB, device=device)
    assert "a client of mode plain" in refusal_of_move(dual_host, "a", second)
    assert devices_of(dual_host, "a") == [first]
    assert [increment(one) for one in (program, plain)] == [8.0, 8.0]


def test_memory_of_other_clients_makes_room(dual_host: SystemHost) -> None:
    """The other client's memory leaves for that of mode plain, and comes ahead of its turn afterwards only."""
    second = dual_host.device_uuids()[1]
    program, other = (
        start_program(dual_host, "a", "plain", 60 * MIB),
        start_program(dual_host, "other", "swap", 150 * MIB, device=1),
    )
    start_all_busy(other)
    assert move(dual_host, "a", second) == {"device": second}
    stop_all(other)
    assert [increment(one) for one in (program, other, program)] == [8.0, 8.0, 9.0]


def test_an_ended_process_ends_its_move(dual_host: SystemHost) -> None:
    """The process ends while it waits for a turn on both devices, which a client on the other device does not end."""
    second = dual_host.device_uuids()[1]
    program, other = start_program(dual_host, "a"), start_program(dual_host, "other", device=1)
    other.run("check(cuda.spin(600_000))")
    found: list[str] = []
    mover = threading.Thread(target=lambda: found.append(refusal_of_move(dual_host, "a", second)))
    mover.start()
    wait_until(lambda: len(devices_of(dual_host, "a")) == 2)
    program.end()
    mover.join(WAIT)
    assert found[0].startswith("the process of client a has ended, or its connection has")
    late = start_program(dual_host, "late")
    assert increment(late) == 8.0


def test_an_interrupted_command_withdraws_the_move(dual_host: SystemHost) -> None:
    first, second = dual_host.device_uuids()
    program, other = start_program(dual_host, "a"), start_program(dual_host, "other", device=1)
    other.run("check(cuda.spin(600_000))")
    argv = [sys.executable, "-m", "jupyter_gpushare", "move", "a", "1"]
    command = subprocess.Popen(argv, env=dual_host.environment(), stderr=subprocess.PIPE, text=True)
    wait_until(lambda: dual_host.clients()["a"]["state_text"].startswith("moving · to device 1 ("))
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=WAIT)
    assert command.returncode == 130
    assert "interrupted, so the move is withdrawn" in errors
    wait_until(lambda: devices_of(dual_host, "a") == [first])
    assert increment(program) == 8.0
    other.end()
    assert move(dual_host, "a", second) == {"device": second}


def test_an_interrupted_line_withdraws_the_move(dual_host: SystemHost, used_notebook: Notebook) -> None:
    notebook = used_notebook
    uuids = dual_host.device_uuids()
    (here,) = devices_of(dual_host, notebook.client_id)
    (there,) = {*uuids} - {here}
    other = start_program(dual_host, "other", device=uuids.index(there))
    other.run("check(cuda.spin(600_000))")
    request = notebook.start(f"%gpushare move {uuids.index(there)}")
    wait_until(lambda: len(devices_of(dual_host, notebook.client_id)) == 2)
    notebook.interrupt()
    reply = notebook.finish(request)
    assert reply["ename"] == "KeyboardInterrupt"
    assert "The move of this kernel is withdrawn" in notebook.text
    wait_until(lambda: devices_of(dual_host, notebook.client_id) == [here])


def test_a_client_goes_on_if_its_coordinator_ends_before_the_move(dual_host: SystemHost) -> None:
    first, second = dual_host.device_uuids()
    program, other = start_program(dual_host, "a"), start_program(dual_host, "other", device=1)
    other.run("check(cuda.spin(600_000))")
    mover = threading.Thread(target=lambda: refusal_of_move(dual_host, "a", second))
    mover.start()
    wait_until(lambda: len(devices_of(dual_host, "a")) == 2)
    dual_host.kill_coordinator()
    mover.join(WAIT)
    dual_host.start_coordinator()
    wait_until(lambda: "a" in dual_host.clients() and devices_of(dual_host, "a") == [first])
    assert increment(program) == 8.0


def test_the_outcome_of_a_move_is_unknown_if_its_coordinator_ends(
    dual_host: SystemHost, used_notebook: Notebook
) -> None:
    notebook = used_notebook
    uuids = dual_host.device_uuids()
    (here,) = devices_of(dual_host, notebook.client_id)
    there = 1 - uuids.index(here)
    program, other = start_program(dual_host, "a", device=1 - there), start_program(dual_host, "other", device=there)
    other.run("check(cuda.spin(600_000))")
    argv = [sys.executable, "-m", "jupyter_gpushare", "move", "a", str(there)]
    command = subprocess.Popen(argv, env=dual_host.environment(), stderr=subprocess.PIPE, text=True)
    wait_for_move(dual_host, "a")
    request = notebook.start(f"%gpushare move {there}")
    wait_for_move(dual_host, notebook.client_id)
    dual_host.kill_coordinator()
    _, errors = command.communicate(timeout=WAIT)
    assert command.returncode == 1
    assert "the client has moved only if the driver had begun the move" in errors
    assert "this kernel has moved only if the driver had begun the move" in notebook.finish(request)["evalue"]
    assert program.run("1") == 1


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("0", "is on device"),
        ("7", "device='7' does not exist"),
    ],
)
def test_bad_requests_change_nothing(dual_host: SystemHost, device: str, reason: str) -> None:
    program = start_program(dual_host, "a")
    before = devices_of(dual_host, "a")
    assert reason in refusal_of_move(dual_host, "a", device)
    assert devices_of(dual_host, "a") == before
    assert increment(program) == 8.0
