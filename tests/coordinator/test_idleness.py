"""Clients that nobody uses, with a real coordinator and fake processes."""

from __future__ import annotations

import json
import signal
from typing import Any

from jupyter_gpushare.coordinator.followers import news
from jupyter_gpushare.wire import messages

from ..support.rule import IN
from .conftest import Coordinator, Processes
from .fake_process import Connection, FakeProcess, wait_for

SIZE = 3 << 30


def configure(coordinator: Coordinator, **changes: Any) -> None:
    coordinator.request(messages.Config(changes=changes))


def seen(coordinator: Coordinator, name: str, **fields: Any) -> dict[str, Any]:
    """The client as the snapshot has it, once it has these values."""

    def found() -> dict[str, Any] | None:
        client = coordinator.client(name)
        return client if client and fields.items() <= client.items() else None

    client = wait_for(found, explain=lambda: f"{coordinator.client(name)} never had {fields}")
    assert isinstance(client, dict)
    return client


def used(processes: Processes, name: str) -> FakeProcess:
    """It has memory on the device, and no turn any more."""
    process = processes(name)
    process.allocate(SIZE)
    return process


def test_the_user_is_told_then_memory_leaves_and_a_turn_brings_it_back(
    coordinator: Coordinator, processes: Processes
) -> None:
    process = used(processes, "a")
    configure(coordinator, idle_warn=1, idle_evict=3)
    warned = wait_for(lambda: (one := coordinator.client("a")) and one["notes"] and one)
    assert "its memory is about to leave the GPU" in warned["notes"][0]
    assert warned["idle_warned"] and 0 <= warned["evicted_in"] <= 3 and warned["suspended_in"] is None
    client = seen(coordinator, "a", evicted_by_policy=True)
    assert client["phase"] == "idle" and client["idle_seconds"] >= 3
    assert "has left the GPU and comes back with its next turn" in client["notes"][0]
    assert process.orders.resident_target == 0

    process.run_turn()
    back = seen(coordinator, "a", evicted_by_policy=False, phase="running")
    assert back["idle_seconds"] is None and back["notes"] == []
    assert (back["idle_warned"], back["evicted_in"]) == (False, None)


def test_time_that_passes_is_no_news(coordinator: Coordinator, processes: Processes) -> None:
    """Frames for it would make an idle server look busy."""
    used(processes, "a")
    configure(coordinator, idle_warn=1, idle_evict=50, idle_suspend=60)

    def warned() -> dict[str, Any] | None:
        """With what it has on the device, which is looked at once a second."""
        status = coordinator.status()
        (client,) = status["clients"]
        return status if client["idle_warned"] and client["evicted_in"] else None

    first = wait_for(warned)
    (before,) = first["clients"]
    until = before["idle_seconds"] + 1.1
    later = wait_for(lambda: (one := coordinator.status())["clients"][0]["idle_seconds"] > until and one)
    assert later["clients"][0]["evicted_in"] < before["evicted_in"] - 1
    assert news(later) == news(first)


def test_memory_stays_where_all_fits(coordinator: Coordinator, processes: Processes) -> None:
    used(processes, "a")
    configure(coordinator, idle_warn=1)
    client = wait_for(lambda: (one := coordinator.client("a")) and one["notes"] and one)
    assert not client["evicted_by_policy"] and client["idle_seconds"] >= 1
    assert "with 3 GiB of the GPU's memory" in client["notes"][0], "told all the same, if it is set so"


def suspended(coordinator: Coordinator, processes: Processes) -> FakeProcess:
    process = used(processes, "a")
    configure(coordinator, idle_suspend=1)
    client = seen(coordinator, "a", phase="suspended", suspended=True, suspended_by_policy=True)
    assert "its next cell or GPU call resumes it" in client["notes"][0]
    return process


def test_a_gpu_call_resumes_whom_the_policy_has_suspended(coordinator: Coordinator, processes: Processes) -> None:
    suspended(coordinator, processes).run_turn()
    seen(coordinator, "a", phase="running", suspended=False, suspended_by_policy=False)


def test_a_cell_resumes_it(coordinator: Coordinator, processes: Processes) -> None:
    suspended(coordinator, processes)
    kernel = Connection(coordinator.path)
    kernel.send(json.dumps({"type": "attach", "client": "a", "token": "secret"}).encode() + b"\n")
    kernel.send({"type": "cell", "state": "start", "request": "1"})
    seen(coordinator, "a", phase="idle", suspended=False, cells=1)
    kernel.close()


def test_a_person_resumes_it(coordinator: Coordinator, processes: Processes) -> None:
    suspended(coordinator, processes)
    configure(coordinator, idle_suspend=0)
    assert coordinator.request(messages.Resume(client="a")) == {"suspended": False, "changed": True}
    seen(coordinator, "a", phase="idle", suspended_by_policy=False)


def test_a_person_who_suspends_it_then_means_it(coordinator: Coordinator, processes: Processes) -> None:
    process = suspended(coordinator, processes)
    assert coordinator.request(messages.Suspend(client="a")) == {"suspended": True, "changed": True}
    process.wants()
    seen(coordinator, "a", phase="suspended", suspended_by_policy=False)
    assert process.phase != IN


def test_a_later_coordinator_knows_who_suspended_it(coordinator: Coordinator, processes: Processes) -> None:
    idle, told = suspended(coordinator, processes), processes("told")
    coordinator.request(messages.Suspend(client="told"))
    coordinator.end(signal.SIGKILL)
    coordinator.start("--GpuShare.idle_suspend=0")
    for process in (idle, told):
        process.disconnect()
        process.say_hello()
    seen(coordinator, "a", phase="suspended", suspended_by_policy=True)
    seen(coordinator, "told", phase="suspended", suspended_by_policy=False)
    idle.run_turn()
    seen(coordinator, "a", phase="running", suspended=False)


def test_who_is_in_use_when_a_later_coordinator_comes_is_resumed(
    coordinator: Coordinator, processes: Processes
) -> None:
    process = suspended(coordinator, processes)
    coordinator.end(signal.SIGKILL)
    coordinator.start()
    process.disconnect()
    process.report.waiting = 1  # a thread came to the gate meanwhile
    process.say_hello()
    process.run_turn()
    seen(coordinator, "a", phase="running", suspended=False)
