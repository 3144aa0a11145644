"""Tests of the idle policy in a real coordinator with fake processes: warning, eviction, suspension and restart."""

from __future__ import annotations

import signal
from typing import Any

from jupyter_gpushare.coordinator.views.subscriptions import significant_fields
from jupyter_gpushare.wire import messages

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import ProtocolProcess, wait_until

SIZE = 3 << 30


def configure(coordinator: CoordinatorProcess, **changes: Any) -> None:
    coordinator.request(messages.Config(changes=changes))


def wait_for_client(coordinator: CoordinatorProcess, name: str, **fields: Any) -> dict[str, Any]:
    """Wait until the client of the snapshot has these values, and return the client."""

    def found() -> dict[str, Any] | None:
        client = coordinator.client(name)
        return client if client and fields.items() <= client.items() else None

    client = wait_until(found, explain=lambda: f"{coordinator.client(name)} never had {fields}")
    assert isinstance(client, dict)
    return client


def make_used_process(processes: ProcessFactory, name: str) -> ProtocolProcess:
    """Return a process with memory on the device and without a turn."""
    process = processes(name)
    process.allocate(SIZE)
    return process


def test_idle_client_is_warned_then_evicted_then_restored(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    process = make_used_process(processes, "a")
    configure(coordinator, idle_warn=1, idle_evict=600)
    warned = wait_until(lambda: (one := coordinator.client("a")) and one["notes"] and one)
    assert "its memory is about to leave the GPU" in warned["notes"][0]
    assert warned["idle_warned"] and 0 < warned["evicted_in"] <= 599 and warned["suspended_in"] is None
    configure(coordinator, idle_evict=3)
    client = wait_for_client(coordinator, "a", evicted_by_policy=True)
    assert client["phase"] == "idle" and client["idle_seconds"] >= 3
    assert "has left the GPU and comes back with its next turn" in client["notes"][0]
    assert process.control.resident_target[0] == 0

    process.run_turn()
    back = wait_for_client(coordinator, "a", evicted_by_policy=False, phase="running")
    assert back["idle_seconds"] is None and back["notes"] == []
    assert (back["idle_warned"], back["evicted_in"]) == (False, None)


def test_passing_time_sends_no_snapshot(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """Such snapshots would make an idle server look busy."""
    make_used_process(processes, "a")
    configure(coordinator, idle_warn=1, idle_evict=50, idle_suspend=60)

    def warned() -> dict[str, Any] | None:
        """Return the snapshot once the client is warned, with the memory from the sample of each second."""
        status = coordinator.status()
        (client,) = status["clients"]
        return status if client["idle_warned"] and client["evicted_in"] else None

    first = wait_until(warned)
    (before,) = first["clients"]
    until = before["idle_seconds"] + 1.1
    later = wait_until(lambda: (one := coordinator.status())["clients"][0]["idle_seconds"] > until and one)
    assert later["clients"][0]["evicted_in"] < before["evicted_in"] - 1
    assert significant_fields(later) == significant_fields(first)


def test_memory_stays_where_all_fits(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    make_used_process(processes, "a")
    configure(coordinator, idle_warn=1)
    client = wait_until(lambda: (one := coordinator.client("a")) and one["notes"] and one)
    assert not client["evicted_by_policy"] and client["idle_seconds"] >= 1
    assert "with 3 GiB of the GPU's memory" in client["notes"][0], "the warning needs memory pressure"


def test_restart_keeps_the_origin_of_a_suspension(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    idle = make_used_process(processes, "a")
    configure(coordinator, idle_suspend=1)
    client = wait_for_client(coordinator, "a", phase="suspended", suspended=True, suspended_by_policy=True)
    assert "its next cell or GPU call resumes it" in client["notes"][0]
    by_user = processes("by-user")
    coordinator.request(messages.Suspend(client="by-user"))
    coordinator.stop(signal.SIGKILL)
    coordinator.start("--GpuShare.idle_suspend=0")
    for process in (idle, by_user):
        process.disconnect()
        process.send_hello()
    wait_for_client(coordinator, "a", phase="suspended", suspended_by_policy=True)
    wait_for_client(coordinator, "by-user", phase="suspended", suspended_by_policy=False)
    idle.run_turn()
    wait_for_client(coordinator, "a", phase="running", suspended=False)
