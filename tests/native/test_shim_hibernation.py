"""Tests of hibernation: a process leaves its device, and returns in a turn when the coordinator has found room."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire.page import IN, LEAVING, OUT

from ..support.polling import wait_until
from .checkpoints import CONTEXT, WATCHER
from .conftest import WAIT_SECONDS, NativeHost
from .fake_coordinator import ScriptedCoordinator

MIB = 1 << 20
SIZE = 64  # MiB of the program's array
BYTES = (SIZE + CONTEXT) * MIB
GRACE_SECONDS = 2.0  # GRACE_NS of agent_step.c
SET_UP = f"""
cuda = Cuda()
size = {SIZE * MIB}
array = cuda.alloc(size)[1]
def increment():
    assert cuda.launch('work_f32', array, size // 4, 0, 0) == 0
    return last()
def last():
    value = c_float()
    assert cuda.cuMemcpyDtoH_v2(byref(value), c_uint64(array + size - 4), c_size_t(4)) == 0
    return value.value
def context():
    current = c_void_p()
    assert cuda.cuCtxGetCurrent(byref(current)) == 0
    return current.value == cuda.context.value
"""


class Host:
    """Program with an array of the value 1, under a coordinator whose next epoch is `epoch`."""

    def __init__(self, machine: NativeHost, coordinator: ScriptedCoordinator, mode: str) -> None:
        self.client = machine.client(GPUSHARE_MEMORY_MODE=mode, GPUSHARE_CLIENT="one", GPUSHARE_TOKEN="secret")
        self.process = self.client.join(coordinator, SET_UP)
        self.epoch = 0
        self.watcher = machine.client(LD_PRELOAD="")
        self.watcher.run(WATCHER)
        assert self.work() == 1.0

    @property
    def free(self) -> int:
        """Free memory of the device in MiB."""
        return int(self.watcher.run("free()"))

    def work(self) -> float:
        """Let the program increment its array in a turn."""
        self.epoch += 1
        value = float(self.client.run_at_the_gate(self.process, self.epoch, "increment()"))
        self.process.drain(self.epoch)
        return value

    def start_increment(self) -> None:
        """Start a call that waits for a turn."""
        self.client.start("increment()")
        self.process.wait_for_waiting_thread()

    def open_gate(self) -> None:
        """Permit the next turn."""
        self.epoch += 1
        self.process.open(self.epoch)

    def request(self, **message: Any) -> None:
        self.process.connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def take_turn(self) -> None:
        """Let the process enter a turn for the request, and leave it as far as it can."""
        self.process.wait_for_waiting_thread()
        self.open_gate()
        self.process.wait_until_entered(self.epoch)
        self.process.close_gate(self.epoch)
        wait_until(lambda: self.process.phase == LEAVING)

    def prepare(self, *, hibernates: bool) -> None:
        self.request(type="move", devices=[self.process.hello["devices"][0]["uuid"]], hibernates=hibernates)

    def is_at_rest(self) -> bool:
        """Return whether the main thread waits for the next line, as a process must that is to be hibernated."""
        call = Path(f"/proc/{self.client.pid}/syscall").read_text().split()
        return call[1:2] == ["0x0"]  # the descriptor

    def hibernate(self) -> None:
        wait_until(self.is_at_rest)
        self.prepare(hibernates=True)
        self.take_turn()
        self.request(type="move_start", bytes=BYTES)
        self.process.expect("moved", error="", hibernated=BYTES)
        self.process.wait_until_left(self.epoch)

    def restore(self) -> None:
        """Let the process return, in a turn of its own."""
        self.prepare(hibernates=False)
        self.take_turn()
        self.request(type="move_start", bytes=0)
        self.process.expect("moved", error="", hibernated=0)
        self.process.wait_until_left(self.epoch)


@pytest.fixture(params=["swap", "plain"])
def host(request: pytest.FixtureRequest, machine: NativeHost, coordinator: ScriptedCoordinator) -> Host:
    return Host(machine, coordinator, request.param)


@pytest.fixture
def swap(machine: NativeHost, coordinator: ScriptedCoordinator) -> Host:
    return Host(machine, coordinator, "swap")


def test_a_hibernated_process_has_nothing_on_the_device(host: Host) -> None:
    used = host.free
    host.hibernate()
    assert host.free == used + CONTEXT + SIZE
    host.restore()
    assert host.work() == 2.0


def test_no_call_runs_in_a_turn_for_a_request_that_ends_with_its_connection(
    swap: Host, coordinator: ScriptedCoordinator
) -> None:
    """The turn of a move may lack the process's own device, which another client has then."""
    swap.prepare(hibernates=True)
    swap.start_increment()
    swap.open_gate()
    swap.process.wait_until_entered(swap.epoch)
    coordinator.stop_listening()
    closed = time.monotonic()
    swap.process.connection.close()
    wait_until(lambda: swap.process.phase == OUT)
    assert swap.client.result() == 2.0
    assert time.monotonic() - closed >= GRACE_SECONDS, "the call runs in a turn without a coordinator"


def test_a_call_with_a_hook_waits_for_the_return(host: Host) -> None:
    host.hibernate()
    host.start_increment()
    host.restore()
    assert host.client.is_running(), "the call waits for a turn after the return"
    host.open_gate()
    assert host.client.result() == 2.0


def test_a_call_without_a_hook_brings_the_process_back(swap: Host) -> None:
    """The call waits in the driver, and the agent finds the main thread elsewhere than before."""
    swap.hibernate()
    swap.client.start("context()")
    swap.process.wait_for_waiting_thread()
    assert swap.client.is_running()
    swap.restore()
    assert swap.client.result() is True
    assert swap.work() == 2.0


def test_an_allocation_that_needs_no_turn_waits_for_the_return(swap: Host) -> None:
    swap.hibernate()
    swap.client.start("cuda.alloc(1 << 20)[0]")
    swap.process.wait_for_waiting_thread()
    swap.restore()
    assert swap.client.result() == 0


def test_a_process_at_rest_stays_away(swap: Host) -> None:
    swap.hibernate()
    assert [swap.client.run("1 + 1") for _ in range(20)] == 20 * [2]
    assert swap.process.page.report.waiting == 0


def test_a_process_that_hibernates_already_answers_at_once(swap: Host) -> None:
    swap.prepare(hibernates=False)
    swap.process.expect("moved", error="", hibernated=0)
    swap.hibernate()
    swap.prepare(hibernates=True)
    swap.process.expect("moved", error="", hibernated=BYTES)


def test_a_main_thread_at_work_prevents_a_hibernation(swap: Host, tmp_path: Path) -> None:
    end = tmp_path / "end"
    swap.client.start(f"while not os.path.exists({str(end)!r}): pass")
    swap.prepare(hibernates=True)
    swap.take_turn()
    swap.request(type="move_start", bytes=BYTES)
    assert "the main thread" in swap.process.expect("moved", hibernated=0)["error"]
    end.touch()
    swap.client.result()
    assert swap.work() == 2.0


def test_a_refused_checkpoint_changes_nothing(swap: Host) -> None:
    assert swap.client.run("cuda.alloc(1 << 20, 'cuMemAllocManaged', 1)[0]") == 0
    swap.prepare(hibernates=True)
    assert "unified memory" in swap.process.expect("moved", hibernated=0)["error"]
    assert swap.work() == 2.0


def test_a_process_returns_in_a_later_turn_if_there_is_no_start(swap: Host) -> None:
    """The coordinator ends the request, because the device has no room."""
    swap.hibernate()
    swap.prepare(hibernates=False)
    swap.take_turn()
    swap.request(type="move_cancel")
    swap.process.wait_until_left(swap.epoch)
    swap.restore()
    assert swap.work() == 2.0


def test_the_next_coordinator_gets_to_know_the_state(swap: Host, coordinator: ScriptedCoordinator) -> None:
    swap.hibernate()
    swap.process.disconnect()
    swap.process = coordinator.accept().welcome()
    assert swap.process.hello["hibernated"] == BYTES
    swap.epoch = 0
    swap.restore()
    assert swap.work() == 2.0


def test_the_gate_stays_closed_if_the_request_ends_in_its_turn(swap: Host) -> None:
    """The turn goes on without the request, until the permit ends."""
    swap.hibernate()
    swap.start_increment()
    swap.prepare(hibernates=False)
    swap.open_gate()
    swap.process.wait_until_entered(swap.epoch)
    swap.request(type="move_cancel")
    assert swap.process.stays_in(IN)
    assert swap.client.is_running()
    swap.prepare(hibernates=False)
    swap.process.close_gate(swap.epoch)
    wait_until(lambda: swap.process.phase == LEAVING)
    swap.request(type="move_start", bytes=0)
    swap.process.expect("moved", error="", hibernated=0)
    swap.process.wait_until_left(swap.epoch)
    swap.open_gate()
    assert swap.client.result() == 2.0


def test_a_permit_alone_brings_no_process_back(swap: Host) -> None:
    swap.hibernate()
    swap.start_increment()
    swap.open_gate()
    assert swap.client.is_running()
    assert swap.process.phase != IN
    swap.process.close_gate(swap.epoch)
    swap.restore()
    swap.open_gate()
    assert swap.client.result() == 2.0


def test_a_hibernated_process_waits_for_a_coordinator(
    machine: NativeHost, coordinator: ScriptedCoordinator, swap: Host
) -> None:
    swap.hibernate()
    swap.start_increment()
    swap.process.page.control.heartbeat_ns = 1
    coordinator.crash()
    wait_until(lambda: "wait until a coordinator finds room for the process" in machine.log_text(), 3 * WAIT_SECONDS)
    assert swap.client.is_running()


def test_a_process_returns_before_its_exit(swap: Host) -> None:
    swap.hibernate()
    assert swap.client.process.stdin
    swap.client.process.stdin.close()
    swap.process.wait_for_waiting_thread()
    swap.restore()
    swap.client.process.wait(WAIT_SECONDS)
    errors = swap.client.collect()
    assert swap.client.process.returncode == 0, errors


def test_a_process_that_cannot_return_exits_all_the_same(swap: Host) -> None:
    swap.hibernate()
    assert swap.client.process.stdin
    swap.client.process.stdin.close()
    swap.client.process.wait(3 * WAIT_SECONDS)
    swap.client.collect()


def test_a_killed_process_leaves_nothing_on_the_device(swap: Host) -> None:
    used = swap.free
    swap.hibernate()
    away = swap.free
    swap.client.process.kill()
    swap.client.collect()
    assert swap.free == away > used


def test_a_child_of_a_fork_is_not_hibernated(swap: Host) -> None:
    swap.hibernate()
    swap.client.run("child = os.fork() or os._exit(0)")
    assert swap.client.run("os.waitpid(child, 0)[1]") == 0
    swap.restore()
    assert swap.work() == 2.0
