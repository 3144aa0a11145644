"""Tests of entering, staying in and leaving turns, by permits and by the devices' locks."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from jupyter_gpushare.agent import pages
from jupyter_gpushare.wire.page import CLOSING, FIRST_TURN, IN, MAY, OUT, Page, Permit

from .conftest import CudaClient, NativeHost, StartedClient
from .fake_coordinator import WAIT_SECONDS, ProcessConnection, ScriptedCoordinator, scripted_coordinator, wait_until
from .ptrace_stop import stopped_thread, thread_named
from .test_shim_without_coordinator import lock_is_free


def read_lock(byte: int) -> bytes:
    """Return a `struct flock` of 64-bit Linux: type, whence, start, length, pid."""
    return struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, byte, 1, 0)


@pytest.fixture
def another_turn(machine: NativeHost, started: StartedClient) -> Callable[[], AbstractContextManager[None]]:
    """Return a context in which another client has a turn on the device. That client rings the bell as it leaves."""
    path = machine.lock_folder / started[1].hello["devices"][0]["uuid"]

    @contextmanager
    def enter() -> Iterator[None]:
        with path.with_suffix(".lock").open("r+b") as file, path.with_suffix(".bell").open("r+b", 0) as bell:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, read_lock(FIRST_TURN + 7))
            fcntl.flock(file, fcntl.LOCK_SH)
            yield
            file.close()
            bell.write(b"!")

    return enter


def test_a_turn_is_entered_when_the_one_before_is_over(
    client: CudaClient, process: ProcessConnection, another_turn: Callable[[], AbstractContextManager[None]]
) -> None:
    with another_turn():
        client.start("cuda.spin()")
        process.open(1)
        wait_until(lambda: process.last_turn.refused_entries > 2)
        assert process.phase == OUT
        assert client.is_running()
    assert client.result() == 0
    assert process.last_turn[4:6] == (1, IN)


def test_a_bell_rings_when_a_turn_is_over(machine: NativeHost, client: CudaClient, process: ProcessConnection) -> None:
    client.begin(process, 1)
    (path,) = machine.lock_folder.glob("*.bell")
    with path.open("r+b", 0) as bell:
        assert not select.select([bell], [], [], 0)[0]
        process.drain(1)
        assert select.select([bell], [], [], WAIT_SECONDS)[0]
        assert lock_is_free(machine)


def test_a_permit_that_is_withdrawn_while_the_lock_is_taken_is_not_used(
    machine: NativeHost, client: CudaClient, process: ProcessConnection
) -> None:
    """The agent is stopped when it has the lock and has not read the permit again."""
    process.open(1)
    calls: list[None] = []

    def has_the_lock() -> bool:
        if not calls:
            calls.append(client.start("cuda.spin()"))
            process.wait_for_waiting_thread()
        return not lock_is_free(machine)

    with stopped_thread(thread_named(client.pid, "gpushare"), has_the_lock):
        process.close_gate(1)
    wait_until(lambda: lock_is_free(machine))
    assert process.phase == OUT and process.last_turn.entered_ns == 0
    process.wait_for_waiting_thread()
    process.open(2)
    assert client.result() == 0


def test_permit_with_a_wrong_check_changes_nothing(client: CudaClient, process: ProcessConnection) -> None:
    client.begin(process, 1)
    permit = process.page.control.permit
    permit.epoch, permit.flags = 2, 0
    process.doorbell()
    assert process.stays_in(IN)
    assert process.last_turn.epoch == 1
    permit.check = Permit(permit.turn, permit.devices, epoch=2).check
    # No doorbell is needed, because the agent reads a torn permit again until it is whole.
    wait_until(lambda: process.phase == OUT)


def test_a_process_in_a_turn_takes_its_clients_page_afterwards(
    machine: NativeHost, coordinator: ScriptedCoordinator, client: CudaClient, process: ProcessConnection
) -> None:
    _, other = machine.new_client(coordinator, GPUSHARE_CLIENT="other")
    process.open(1)
    assert client.run("cuda.alloc(1 << 20)[0], cuda.spin()") == [0, 0]
    turn = process.turn
    process.connection.close()
    again = coordinator.accept().join(other, 1)
    again.open(2, turn=turn)
    again.wait_until_entered(2)
    assert other.client_page.view.slots[1].allocated == 0
    again.drain(2)
    wait_until(lambda: other.client_page.view.slots[1].allocated == 1 << 20)


def test_a_step_for_a_sibling_on_the_clients_second_device(
    coordinator: ScriptedCoordinator,
    client: CudaClient,
    process: ProcessConnection,
    another_turn: Callable[[], AbstractContextManager[None]],
) -> None:
    own = process.hello["devices"][0]["uuid"]
    page = pages.ClientPage.new(FIRST_TURN + 9, ("GPU-another-one", own))
    process.connection.close()
    coordinator.accept().send({"type": "join"}, [page.descriptor])
    sibling = page.slots[3]
    sibling.turn, sibling.since_ns, sibling.phase = FIRST_TURN + 7, time.monotonic_ns(), CLOSING
    sibling.seen = int(time.monotonic()) + 3600
    with another_turn():
        client.start("cuda.spin()")
        assert client.result() == 0
    page.close()


def test_a_permit_counts_only_with_the_answer_to_hello(machine: NativeHost) -> None:
    """The answer may pass another client page, whose devices the permit means."""
    with scripted_coordinator(machine.socket) as coordinator:
        client = machine.client()
        client.start("cuda = Cuda()")
        coordinator.accept().welcome().connection.close()
        client.result()
        process = coordinator.accept()
        client.start("cuda.spin()")
        process.wait_for_waiting_thread()
        process.open(5)
        assert client.is_running()
        process.welcome()
        assert client.result() == 0
        assert process.last_turn.epoch == 5


def test_a_page_of_an_earlier_connection_is_not_obeyed(machine: NativeHost) -> None:
    """A coordinator that had hung writes a permit that its successor has not given."""
    with scripted_coordinator(machine.socket) as coordinator:
        client, process = machine.new_client(coordinator)
        process.turn += 1
        before, number = Page(os.dup(process.page.descriptor)), process.turn
    with scripted_coordinator(machine.socket) as coordinator:
        again = coordinator.accept().welcome()
        client.start("cuda.spin()")
        again.wait_for_waiting_thread()
        before.write_permit(Permit(number, 1, epoch=1, flags=MAY))
        again.doorbell()
        assert client.is_running(0.3)
        again.open(1)
        assert client.result() == 0
        assert again.last_turn.turn == again.turn
    before.close()


def test_a_file_that_is_no_bell_is_not_rung(machine: NativeHost) -> None:
    """Another user may have made a file of any type under that name."""
    machine.lock_folder.mkdir()
    with scripted_coordinator(machine.socket) as coordinator:
        client = machine.client()
        client.start("cuda = Cuda()")
        process = coordinator.accept()
        path = Path(machine.lock_folder / f"{process.hello['devices'][0]['uuid']}.bell")
    client.result()
    client.end()
    path.unlink()
    path.write_text("a file")
    with scripted_coordinator(machine.socket) as coordinator:
        client, process = machine.new_client(coordinator)
        client.begin(process, 1)
        process.drain(1)
    assert path.read_text() == "a file"
