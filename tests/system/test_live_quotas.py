"""Tests of quotas and suspensions that change while programs run, by the time stamps of the device."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from jupyter_gpushare.coordinator.gpu import simulated_driver
from jupyter_gpushare.wire import messages

from .notebook_client import Notebook
from .system_host import MIB, MOST, WAIT, GpuProgram, SystemHost, start_all_busy, stop_all, wait_until
from .test_evict import FILL, FIRST

DEVICE, NO_LOCATION = 0, -2  # preferred locations, as the driver reports them
TOUCH = "[*(cuda.launch('fill_f32', array, 7.0, 4 << 20) for array in arrays), cuda.cuCtxSynchronize()]"
SHARE_WINDOW_SECONDS = 60.0  # in which a share is a floor
WORK = "cuda.spin(1) or cuda.cuCtxSynchronize()"


def change(host: SystemHost, client: str, **changes: object) -> None:
    host.request(messages.SetQuota(client=client, changes=changes))


def device_shares(host: SystemHost, *programs: GpuProgram, seconds: float) -> list[float]:
    """Return the fraction of the device's next `seconds` that the launches of each program take."""
    start = time.monotonic_ns()
    wait_until(lambda: time.monotonic_ns() > start + seconds * 1e9, seconds + WAIT)
    return shares_between(host, *programs, start=start, end=start + int(seconds * 1e9))


def shares_between(host: SystemHost, *programs: GpuProgram, start: int, end: int) -> list[float]:
    """Return the fraction of the device's time from `start` to `end`, in ns, that the launches of each program take."""
    return [
        sum(min(one.end_ns, end) - max(one.begin_ns, start) for one in host.executions(program)
            if one.end_ns > start and one.begin_ns < end) / (end - start)
        for program in programs
    ]  # fmt: skip


def has_share_limit(host: SystemHost, client: str, other: str, since: float) -> bool:
    """Return whether the share limits the launches of the client, for a time that has begun after `since`."""
    return any(
        (limit["reason"], limit["unit"], limit["colocated_with"]) == ("share", "device_seconds", [other])
        and since - 1 <= limit["since"] <= time.time() + 1
        for limit in host.clients()[client]["limits"]
    )


def start_with_shares(host: SystemHost, *options: str) -> tuple[GpuProgram, GpuProgram]:
    """Start two programs, and change their shares while both are busy and colocated."""
    host.start_coordinator(*options)
    more, less = host.program("more"), host.program("less")
    more.busy(sync_every=100)  # queues work ahead, so that only the share limits the program
    less.start_busy(sync_every=100)
    less.result()
    change(host, "more", share=0.7)
    change(host, "less", share=0.3)
    return more, less


def test_live_share_changes_apply(host: SystemHost) -> None:
    start_time = time.time()
    more, less = start_with_shares(host)

    def part() -> float:
        first, second = device_shares(host, more, less, seconds=1)
        return first / (first + second or 1.0)  # both may be stopped for a second

    wait_until(lambda: 0.6 < part() < 0.8, 60.0)  # a busy processor delays the launches of some seconds
    wait_until(lambda: has_share_limit(host, "less", "more", start_time))
    stop_all(more, less)


@pytest.mark.exclusive
@pytest.mark.nightly
@pytest.mark.parametrize("options", [[], ["--policy", "fair"]])
def test_live_shares_are_kept(host: SystemHost, options: list[str]) -> None:
    more, less = start_with_shares(host, *options)
    device_shares(host, seconds=1)  # colocated clients are accounted once a second
    first, second = device_shares(host, more, less, seconds=6)
    assert first / (first + second) == pytest.approx(0.7, abs=0.04)
    stop_all(more, less)


@pytest.mark.exclusive
@pytest.mark.nightly  # a share is a floor of the time in a minute
@pytest.mark.timeout(600)
def test_live_share_changes_apply_to_turns_beside_short_cells(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    """No two of the clients fit on the device. The cells of the notebook stay short, and need less than its part."""
    host, notebook = default_settings_host, start()
    notebook.run(host.allocation(MOST))
    more, less = host.program("more", part=MOST), host.program("less", part=MOST)
    start_all_busy(more, less, sync_every=4)
    change(host, "more", share=0.7)
    change(host, "less", share=0.2)
    device_shares(host, seconds=SHARE_WINDOW_SECONDS)
    waits, start_ns = [], time.monotonic_ns()
    end_ns = start_ns + int(2e9 * SHARE_WINDOW_SECONDS)
    while time.monotonic_ns() < end_ns:
        before = host.clients()[notebook.client_id]["wait_seconds"]
        notebook.run("work(0.1)")
        waits.append(host.clients()[notebook.client_id]["wait_seconds"] - before)
        time.sleep(3.0)  # the user thinks
    first, second = shares_between(host, more, less, start=start_ns, end=end_ns)
    assert first >= 0.7 - 0.07 and second >= 0.2 - 0.05, (first, second)
    assert 0.7 - 0.05 <= first / (first + second) <= 0.8 + 0.05
    assert max(waits) <= 1.5, waits
    stop_all(more, less)


def test_live_resident_quota_changes_apply(fcfs_host: SystemHost) -> None:
    """The coordinator evicts memory beyond the quota, also of an idle client, and the data stays."""
    program = fcfs_host.program("one", GPUSHARE_MEMORY_MODE="swap")
    program.run(FILL)
    assert fcfs_host.clients()["one"]["resident"] == 64 * MIB
    runs, waits = fcfs_host.program("runs"), fcfs_host.program("waits")
    fcfs_host.request(messages.Release(client="one"))
    runs.busy()
    waits.start_busy()
    wait_until(lambda: fcfs_host.phase("waits") == "waiting")
    assert fcfs_host.clients()["one"]["resident"] == 64 * MIB, "the device has room for the memory"
    change(fcfs_host, "one", resident="24MiB")
    wait_until(lambda: fcfs_host.clients()["one"]["resident"] <= 24 * MIB)
    change(fcfs_host, "one", resident=None)
    fcfs_host.request(messages.Release(client="runs"))
    waits.result()
    stop_all(waits, runs)
    program.run(FIRST)
    assert program.run("[first(array) for array in arrays]") == [7.0] * 4
    assert fcfs_host.clients()["one"]["resident"] == 64 * MIB
    assert fcfs_host.clients()["one"]["allocated"] == 64 * MIB


def test_a_resident_quota_changes_while_the_program_works(default_settings_host: SystemHost) -> None:
    """The work reaches the memory that has left over the link, and the turn goes on."""
    host = default_settings_host
    program = host.program("one")
    program.run(FILL)
    program.run(FIRST)
    program.busy()

    def used() -> int:
        """Return the bytes of the device that the program uses, by the driver."""
        return sum(size or 0 for sizes in simulated_driver.processes().values() for size in sizes.values())

    turns, before = host.clients()["one"]["turn_count"], used()
    for size in (24, 40):
        assert host.command("quota", "one", f"resident={size}MiB").returncode == 0
        wait_until(lambda size=size: size - 16 < host.page(program)["resident"] / MIB <= size)
        began = time.monotonic_ns()
        wait_until(lambda began=began: host.worked_since(began, program))
        assert program.run("[first(array) for array in arrays]") == [7.0] * 4
        assert program.run(TOUCH) == [0] * 5
        assert used() <= before - (64 - size) * MIB
    assert "resident in its quota" in host.clients()["one"]["limit_text"]
    assert host.command("quota", "one", "resident=none").returncode == 0
    wait_until(lambda: host.page(program)["resident"] >= 64 * MIB and used() >= before)
    assert host.clients()["one"]["turn_count"] == turns
    program.stop()


def test_placement_of_unified_memory_follows_the_service_class(host: SystemHost) -> None:
    """The driver keeps an online program's memory on the device, and evicts an offline program's memory first."""
    host.start_coordinator()
    program = host.program("one", GPUSHARE_MEMORY_MODE="unified")
    program.run("import ctypes; array, place = cuda.alloc(8 << 20)[1], ctypes.c_int(7)")
    program.run("address = ctypes.c_uint64(array)")
    assert program.run("cuda.launch('fill_f32', array, 7.0, 1000), cuda.cuCtxSynchronize()") == [0, 0]

    def preferred_location() -> int:
        query = (
            "cuda.cuMemRangeGetAttribute(ctypes.byref(place), ctypes.c_size_t(4), 2, address, ctypes.c_size_t(8 << 20))"
        )
        status, place = program.run(f"{query}, place.value")
        assert status == 0
        return int(place)

    assert preferred_location() == DEVICE
    change(host, "one", service="offline")
    host.request(messages.Release(client="one"))
    wait_until(lambda: preferred_location() == NO_LOCATION)
    change(host, "one", service="online")
    wait_until(lambda: preferred_location() == DEVICE)


def test_a_suspended_program_waits_and_can_be_interrupted(default_settings_host: SystemHost) -> None:
    program = default_settings_host.program("one")
    program.run("array = cuda.alloc(8 << 20)[1]; cuda.cuCtxSynchronize()")
    default_settings_host.request(messages.Suspend(client="one"))
    # Until the drain has ended, calls may pass the gate in steps, because device work might wait for them.
    wait_until(lambda: default_settings_host.status()["devices"][0]["grants"] == [])
    for _ in range(2):
        program.start(WORK)
        wait_until(lambda: default_settings_host.request(messages.WaitStatus(client="one"))["waiting"])
        assert default_settings_host.phase("one") == "suspended"
        program.send(signal.SIGINT)
        assert program.raw()["error"] == "KeyboardInterrupt"
    program.start(WORK)
    default_settings_host.request(messages.Resume(client="one"))
    assert program.result() == 0
