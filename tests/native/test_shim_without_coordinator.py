"""Tests of turns without a coordinator, and of the return to a coordinator."""

from __future__ import annotations

import fcntl
import os
import signal
import time

from jupyter_gpushare.wire.page import IN, OUT

from . import simlog
from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, scripted_coordinator, wait_until
from .test_shim_transfer_failures import faulty_driver, hold_next, release, wait_until_held

MS = 1_000_000
LOOP = """
stop, launches = False, 0
def loop():
    global launches
    cuda.make_current()
    while not stop:
        assert cuda.spin(0.2) == 0 and cuda.cuStreamSynchronize(None) == 0
        launches += 1
thread = in_thread(loop)
"""


def clients(
    machine: NativeHost, coordinator: ScriptedCoordinator, *names: str, quantum: float = 0.2, **environment: str
) -> list[tuple[CudaClient, ProcessConnection]]:
    """Start clients with a quantum (in seconds) and closed gates."""
    started = []
    for name in names:
        client = machine.client(GPUSHARE_CLIENT=name, **environment)
        client.start("cuda = Cuda()")
        process = coordinator.accept()
        process.page.control.quantum_ns = int(quantum * 1e9)
        process.welcome()
        client.result()
        started.append((client, process))
    return started


def lock_is_free(machine: NativeHost) -> bool:
    (path,) = machine.lock_folder.glob("*.lock")
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def advances(client: CudaClient) -> None:
    before = client.run("launches")
    wait_until(lambda: client.run("launches") > before, what="a launch")


def finish(*clients: CudaClient) -> None:
    for word in ("stop = True", "thread.join()"):
        for client in clients:
            client.run(word)


def test_two_clients_take_turns_that_do_not_overlap(machine: NativeHost) -> None:
    with scripted_coordinator(machine.socket) as coordinator:
        (one, _), (two, _) = clients(machine, coordinator, "one", "two")
        for client in (one, two):
            client.run(LOOP)
    for _ in range(4):
        advances(one)
        advances(two)
    finish(one, two)
    wait_until(lambda: lock_is_free(machine))
    logs = simlog.read_all(machine.simlog)
    assert set(logs) == {one.pid, two.pid}
    assert simlog.overlap_seconds(logs.values()) == 0


def test_turns_work_without_any_coordinator(machine: NativeHost) -> None:
    seconds: list[float] = []
    while len(seconds) < 4 and min(seconds, default=2.0) >= 1.5:  # a busy machine makes some starts slower
        client = machine.client()
        client.run("1")  # the interpreter has started
        begin = time.monotonic()
        client.run("cuda = Cuda()")
        seconds.append(time.monotonic() - begin)
    assert min(seconds) < 1.5, "the programs waited for a coordinator although there is none"
    assert client.run("cuda.spin()") == 0
    wait_until(lambda: lock_is_free(machine))  # an idle client leaves its turn


def test_the_turn_of_a_killed_process_ends_although_its_child_lives(machine: NativeHost) -> None:
    with scripted_coordinator(machine.socket) as coordinator:
        (one, _), (two, _) = clients(machine, coordinator, "one", "two", quantum=60)
        one.run("child = os.fork()\nif child == 0:\n    time.sleep(60)\n    os._exit(0)")
        child = one.run("child")
    one.run(LOOP)
    wait_until(lambda: not lock_is_free(machine))
    two.run(LOOP)
    assert two.run("launches") == 0
    one.process.send_signal(signal.SIGKILL)
    advances(two)
    os.kill(child, signal.SIGKILL)


def test_another_coordinator_adopts_a_running_turn(machine: NativeHost) -> None:
    with scripted_coordinator(machine.socket) as coordinator:
        ((client, _),) = clients(machine, coordinator, "one", quantum=60)
    client.run(LOOP)
    advances(client)
    with scripted_coordinator(machine.socket) as coordinator:
        process = coordinator.accept().welcome()
        before = process.last_turn
        assert (before.turn, before.phase, before.epoch) == (process.client_page.view.turn, IN, 0)
        assert process.page.control.quantum_ns == 60_000 * MS
        advances(client)
        process.open(1, turn=before.turn)
        process.wait_until_entered(1)
        assert process.last_turn.entered_ns == before.entered_ns
        advances(client)
        process.drain(1)
        assert lock_is_free(machine)
        process.wait_for_waiting_thread()
        process.open(100)
        advances(client)


def test_a_process_leaves_a_coordinator_that_hangs(machine: NativeHost) -> None:
    with scripted_coordinator(machine.socket) as coordinator:
        ((client, process),) = clients(machine, coordinator, "one")
        client.run(LOOP)
        process.wait_for_waiting_thread()
        process.page.control.heartbeat_ns = time.monotonic_ns() - 3_900 * MS  # the last heartbeat, 5 s old in a second
        again = coordinator.accept()  # the process connects again, and gets no answer
        assert again.phase == OUT
        advances(client)


def test_quantum_counts_from_the_end_of_the_restore(machine: NativeHost) -> None:
    quantum = 50 * MS
    environment = {"GPUSHARE_MEMORY_MODE": "swap", "LD_LIBRARY_PATH": str(faulty_driver().parent)}
    with scripted_coordinator(machine.socket) as coordinator:
        ((client, process),) = clients(machine, coordinator, "one", quantum=quantum / 1e9, **environment)
        client.begin(process, 1)
        client.run("array = cuda.alloc(512 << 20)[1]")
        process.page.control.resident_target[0] = 0
        process.drain(1)
        wait_until(lambda: process.page.report.resident == 0)
        process.page.control.heartbeat_ns = time.monotonic_ns() - 6_000 * MS
        later = coordinator.accept()  # the process connects again, and gets no answer
        hold_next(client, "cuMemcpyHtoDAsync_v2")
        client.run(LOOP)
        wait_until_held(client)
        entered_ns = later.last_turn.entered_ns
        wait_until(lambda: time.monotonic_ns() > entered_ns + 2 * quantum)
        released_ns = time.monotonic_ns()
        release(client)
        closed_ns = wait_until(lambda: later.last_turn.closed_ns)
        assert entered_ns < released_ns < closed_ns


def test_launch_budget_ends_with_its_coordinator(machine: NativeHost) -> None:
    """The budget was for colocated clients, and no client is colocated without a coordinator."""
    with scripted_coordinator(machine.socket) as coordinator:
        ((client, process),) = clients(machine, coordinator, "x")
        process.page.control.budget_rate = 1
        process.open(1)
        client.run(LOOP)
    advances(client)
    finish(client)
