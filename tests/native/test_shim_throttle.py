"""Tests of the throttle, which are the in-flight window and the launch budget; and of the busy time."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from jupyter_gpushare.wire.page import CONTENDED, layout

from ..support.polling import least
from . import simlog
from .conftest import NativeHost, StartedClient
from .fake_coordinator import ScriptedCoordinator, wait_until
from .test_shim_transfer_failures import faulty_driver

MS = 1_000_000
TIME, STOP = (layout()[1][f"GPUSHARE_BUDGET_{name}"] for name in ("TIME", "STOP"))
ONE = "one = cuda.stream(1)"
QUEUE = """
def queue(count, milliseconds, stream=0):
    times = []
    for _ in range(count):
        error = cuda.spin(milliseconds, stream)
        assert error == 0, error
        times.append(time.monotonic_ns())
    return times
"""

THREADS = """
import threading
def launch_once():
    cuda.make_current()
    assert cuda.spin(0.01) == 0
def launch_in_threads(count):
    began = time.monotonic()
    for _ in range(count):
        thread = threading.Thread(target=launch_once)
        thread.start()
        thread.join()
    return time.monotonic() - began
"""


def permit(process: Any, epoch: int = 1, contended: bool = False, **control: int) -> None:
    """Permit a turn with these fields of the control block, which hold from its first call on."""
    for name, value in {"idle_release_ns": 0, **control}.items():
        setattr(process.page.control, name, value)
    process.open(epoch, CONTENDED if contended else 0)


def outstanding(machine: NativeHost, times: list[int]) -> list[int]:
    """Return, for each launch on one stream, how many launches were unfinished at the launch."""
    (executions,) = simlog.read_all(machine.simlog).values()
    ends = [execution.end_ns for execution in sorted(executions, key=lambda e: e.begin_ns)]
    assert len(ends) >= len(times)
    return [sum(end > moment for end in ends[: number + 1]) for number, moment in enumerate(times)]


@pytest.mark.parametrize(("milliseconds", "fit"), [(0.1, 200), (1, 20), (4, 5), (50, 2)])
def test_the_window_bounds_what_is_outstanding(
    machine: NativeHost, started: StartedClient, milliseconds: float, fit: int
) -> None:
    """The driver's log has the times. Behind a launch longer than the window, one launch waits in the stream.

    On a busy machine, the program makes some launches late, and finds fewer launches unfinished than the window allows.
    """
    client, process = started
    client.run(QUEUE)
    permit(process, contended=True, window_ns=20 * MS)
    times = client.run(f"queue({max(12, int(300 / milliseconds))}, {milliseconds})")
    assert client.run("cuda.cuCtxSynchronize()") == 0
    found = outstanding(machine, times)
    assert max(found) <= 2 * fit
    assert max(found) >= fit / 5, "the device would have been idle"
    assert process.page.report.throttle_waits > 0
    process.drain(1)
    wait_until(lambda: process.page.report.launches == len(times))


def test_work_queued_before_contention_is_finished_first(machine: NativeHost, started: StartedClient) -> None:
    client, process = started
    client.run(QUEUE)
    process.page.control.window_ns = 20 * MS
    process.page.control.idle_release_ns = 0
    process.open(1)
    before = client.run("queue(250, 1)")
    process.open(1, CONTENDED)
    wait_until(machine.is_throttled)
    after = client.run("queue(100, 1)")
    assert client.run("cuda.cuCtxSynchronize()") == 0
    found = outstanding(machine, before + after)
    assert max(found[:250]) > 100, "a call waited although the turn was not contended"
    # A busy machine ends the earlier work late. Later launches alone are outstanding then.
    later = [count for number, count in enumerate(found[250:], start=1) if count <= number]
    assert later and max(later) <= 40
    process.drain(1)


@pytest.mark.parametrize(
    "control",
    [{"window_ns": 20 * MS}, {"contended": True}, {"contended": True, "budget_rate": 0}, {"exempt_ns": 5 * MS}],
    ids=["not contended", "no bound", "no budget", "exemption without a budget"],
)
def test_uncontended_work_is_not_throttled(
    machine: NativeHost, started: StartedClient, control: dict[str, int]
) -> None:
    """Without the throttle bit, a call records no event and reads no clock."""
    client, process = started
    client.run(QUEUE)
    permit(process, **control)
    assert client.run("cuda.hold()") == 0
    times = client.run("queue(200, 1)")
    assert client.run("cuda.release() or cuda.cuCtxSynchronize()") == 0
    assert max(outstanding(machine, times)) == 200
    assert process.page.report.throttle_waits == 0
    assert "throttled" not in machine.log_text()


def test_inflight_window_ends_without_contention(machine: NativeHost, started: StartedClient) -> None:
    client, process = started
    client.run(QUEUE)
    permit(process, contended=True, window_ns=20 * MS)
    first = client.run("queue(50, 1)")
    process.open(1)
    wait_until(lambda: not machine.is_throttled())
    waits = process.page.report.throttle_waits
    assert client.run("cuda.hold()") == 0
    second = client.run("queue(200, 1)")
    assert client.run("cuda.release() or cuda.cuCtxSynchronize()") == 0
    found = outstanding(machine, first + second)
    assert max(found[:50]) <= 40 and max(found) >= 199
    assert process.page.report.throttle_waits == waits


def test_throttle_handles_reused_stream_handles(started: StartedClient) -> None:
    """Three threads create, use and destroy streams, whose handles the driver uses again."""
    client, process = started
    permit(process, contended=True, window_ns=2 * MS)
    client.run(
        """
def rounds():
    cuda.make_current()
    for _ in range(60):
        one = cuda.stream(1)
        for _ in range(20):
            assert cuda.spin(0.1, one) == 0
        assert cuda.cuStreamDestroy_v2(c_void_p(one)) == 0
    ended.append(True)
ended = []
threads = [in_thread(rounds) for _ in range(3)]
"""
    )
    assert client.run("[thread.join() for thread in threads] and ended") == [True] * 3
    process.drain(1)
    wait_until(lambda: process.page.report.launches == 3600)


def test_a_capture_is_left_valid(started: StartedClient) -> None:
    """The capture has its first stream and a stream that joined; another thread is throttled meanwhile."""
    client, process = started
    permit(process, contended=True, window_ns=5 * MS)
    client.run("one, two, other = (cuda.stream(1) for _ in range(3)); graph = c_void_p(); instance = c_void_p()")
    client.run("event = c_void_p(); cuda.cuEventCreate(byref(event), 0); stop = False")
    client.run(
        "def loop():\n    cuda.make_current()\n    while not stop:\n        assert cuda.spin(0.5, other) == 0\n"
        "thread = in_thread(loop)"
    )
    for mode in (0, 1, 2):
        client.run("[cuda.spin(0.5, s) for s in (one, two) for _ in range(20)]")
        assert client.run(f"cuda.cuStreamBeginCapture_v2(c_void_p(one), {mode})") == 0
        client.run("cuda.cuEventRecord(event, c_void_p(one)), cuda.cuStreamWaitEvent(c_void_p(two), event, 0)")
        before = process.page.report.throttle_waits
        assert set(client.run("[cuda.spin(0.1, s) for s in (one, two) for _ in range(100)]")) == {0}
        wait_until(lambda before=before: process.page.report.throttle_waits > before + 3)
        client.run("cuda.cuEventRecord(event, c_void_p(two)), cuda.cuStreamWaitEvent(c_void_p(one), event, 0)")
        assert client.run("cuda.cuStreamEndCapture(c_void_p(one), byref(graph))") == 0
        assert client.run("cuda.cuGraphInstantiateWithFlags(byref(instance), graph, ctypes.c_ulonglong(0))") == 0
        assert client.run("cuda.cuGraphLaunch(instance, c_void_p(one))") == 0
    client.run("stop = True; thread.join()")
    assert client.run("cuda.cuCtxSynchronize()") == 0
    process.drain(1)


def test_work_that_waits_for_a_later_call_of_the_same_thread(started: StartedClient) -> None:
    """The device waits for a throttled call. As long as no work ends, the throttle lets one call after another pass."""
    client, process = started
    permit(process, contended=True, window_ns=5 * MS)
    client.run(f"{ONE}; two = cuda.stream(1); flag = cuda.alloc(4096, 'cuMemAllocManaged', 1)[1]")
    assert client.run("cuda.cuMemsetD8_v2(c_uint64(flag), 0, c_size_t(4096))") == 0
    client.start(
        "[cuda.launch('wait_flag', flag, 1, stream=one)] + [cuda.spin(0, one) for _ in range(6)]"
        " + [cuda.launch('set_flag', flag, 1, stream=two), cuda.cuCtxSynchronize()]"
    )
    assert set(client.result()) == {0}
    process.drain(1)


@pytest.mark.parametrize("control", [{"window_ns": 20 * MS, "contended": True}, {"budget_rate": STOP}])
def test_keyboard_interrupt_while_a_call_is_throttled(
    machine: NativeHost, started: StartedClient, control: dict[str, int]
) -> None:
    client, process = started
    process.open(1)
    client.run("assert cuda.spin(20000) == 0")
    permit(process, 2, **control)
    wait_until(machine.is_throttled)
    for number in range(3):
        begun = machine.root / f"begun {number}"
        client.start(f"Path({str(begun)!r}).touch()\nwhile True: assert cuda.spin(0) == 0")
        wait_until(begun.exists)
        assert client.is_running(0.3)
        os.kill(client.pid, signal.SIGINT)
        assert client.raw()["error"] == "KeyboardInterrupt"


def test_a_budget_of_blocks_is_kept(machine: NativeHost, started: StartedClient) -> None:
    """Each launch has one block, and the budget is 1000 blocks a second. The budget changes within the turn."""
    client, process = started
    client.run(QUEUE)
    permit(process, budget_rate=1000)
    client.run("queue(200, 0)")  # the bucket is empty
    took = "(began := time.monotonic_ns()) and queue({}, 0)[-1] - began"
    assert client.run(took.format(400)) > 0.35e9
    began = client.run("began")
    process.page.control.budget_rate = 100
    assert client.run(took.format(30)) > 0.25e9
    process.page.control.budget_rate = 0
    process.doorbell()
    wait_until(lambda: not machine.is_throttled())
    waits = process.page.report.throttle_waits
    client.run("queue(1000, 0)")
    assert process.page.report.throttle_waits == waits
    (executions,) = simlog.read_all(machine.simlog).values()
    begins = sorted(execution.begin_ns for execution in executions)
    assert begins[599] - began > 0.35e9


def test_launches_of_ended_threads_count_in_a_budget(started: StartedClient) -> None:
    client, process = started
    client.run(THREADS)
    permit(process, budget_rate=100)
    seconds = client.run("launch_in_threads(60)")
    assert seconds > 0.5  # the budget of 60 launches, but for the full bucket at the start
    process.drain(1)


def test_a_budget_of_device_time_leaves_pauses_in_proportion(machine: NativeHost, started: StartedClient) -> None:
    """With a quarter of the time, work of 200 ms takes 750 ms.

    On a busy machine, work at the end may take long, and no pause follows.
    """
    client, process = started
    client.run(QUEUE)
    permit(process, budget_rate=250 * MS, budget_unit=TIME)

    def share() -> float:
        client.run("queue(200, 1); cuda.cuCtxSynchronize()")
        (executions,) = simlog.read_all(machine.simlog).values()
        made = executions[-200:]
        assert len(made) == 200
        return sum(one.end_ns - one.begin_ns for one in made) / (made[-1].end_ns - made[0].begin_ns)

    assert least(share, 0.35) < 0.35
    process.page.control.budget_rate = 0
    process.doorbell()
    wait_until(lambda: not machine.is_throttled())


def test_short_sparse_launches_have_credit_in_a_budget_of_device_time(started: StartedClient) -> None:
    """The budget is half of the device's time, and the program works for about 1 ms in every 20 ms.

    On a busy machine, some launches take long. After a pause, the throttle forgets them.
    """
    client, process = started
    client.run(QUEUE + "def burst():\n    [queue(1, 0.3) and cuda.cuCtxSynchronize() for _ in range(3)]\n")
    permit(process, budget_rate=500 * MS, budget_unit=TIME)

    def waits() -> int:
        before = process.page.report.throttle_waits
        client.run("time.sleep(0.2); [burst() or time.sleep(0.02) for _ in range(20)]")
        return int(process.page.report.throttle_waits - before)

    assert least(waits, 1) == 0


@pytest.mark.parametrize("rounds", [10, 4])
def test_gpu_time_is_estimated(machine: NativeHost, started: StartedClient, rounds: int) -> None:
    """A round takes 0.1 s. The work begins after a pause within a turn, as in a notebook on an idle device.

    On a busy machine, some rounds begin late, and the estimate may count the pauses between them.
    """
    client, process = started
    client.run(QUEUE)
    process.open(1)
    assert client.run("time.sleep(0.3) or cuda.spin(0) or time.sleep(0.3) or 0") == 0
    idle_ns = process.page.report.gpu_ns
    client.run(f"[queue(20, 5) and cuda.cuCtxSynchronize() for _ in range({rounds})] and None")
    process.drain(1)
    (executions,) = simlog.read_all(machine.simlog).values()
    worked = sum(execution.end_ns - execution.begin_ns for execution in executions)
    passed = process.last_turn.left_ns - executions[1].begin_ns
    assert worked / 2 < process.page.report.gpu_ns - idle_ns < 2 * passed


def test_the_window_bounds_what_is_outstanding_while_another_thread_queries_streams(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """On a busy machine, the agent may lose the processor in the middle of its queries."""
    client, process = machine.new_client(coordinator, LD_LIBRARY_PATH=str(faulty_driver().parent))
    client.run(QUEUE)
    permit(process, contended=True, window_ns=20 * MS)
    client.run(
        "times = queue(10, 4)\n"
        "cuda.library.faulty_hold_for(20_000)\n"
        "cuda.library.faulty_hold_in(b'cuStreamQuery')\n"
        "while cuda.library.faulty_hold(-1) == 1: times += queue(1, 4)\n"
        "times += queue(40, 4)"
    )
    assert client.run("cuda.library.faulty_hold(-1)") == 2
    client.run("cuda.library.faulty_hold(0)")
    assert client.run("cuda.cuCtxSynchronize()") == 0
    assert max(outstanding(machine, client.run("times"))) <= 10


def test_a_throttled_launch_does_not_wait_for_a_free_in_a_full_stream(
    machine: NativeHost, coordinator: ScriptedCoordinator
) -> None:
    """The driver holds the free of another thread until the device has worked, which may need the launch."""
    driver = str(faulty_driver().parent)
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap", LD_LIBRARY_PATH=driver)
    permit(process, contended=True, window_ns=20 * MS)
    client.run(
        "one, two, array = cuda.stream(1), cuda.stream(1), c_uint64()\n"
        "assert cuda.cuMemAllocAsync(byref(array), c_size_t(2 << 20), c_void_p(one)) == 0\n"
        "assert cuda.spin(0, two) == 0\n"
        "def free():\n"
        "    cuda.make_current()\n"
        "    assert cuda.cuMemFreeAsync(array, c_void_p(one)) == 0\n"
        "cuda.library.faulty_hold_for(20_000)\n"
        "cuda.library.faulty_hold_in(b'cuEventRecord')\n"
        "thread = in_thread(free)\n"
        "while cuda.library.faulty_hold(-1) == 1: pass"
    )
    assert client.run("[cuda.spin(0.1, two) for _ in range(50)]") == [0] * 50
    assert client.run("cuda.library.faulty_hold(-1)") == 2
    client.run("cuda.library.faulty_hold(0); thread.join()")
    process.drain(1)
