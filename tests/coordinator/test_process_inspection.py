"""Tests of the inspection of a process through its coordinator: access, results, and a stopped process."""

from __future__ import annotations

import os
import threading
from typing import Any

from jupyter_gpushare.wire import messages

from .conftest import Connect, CoordinatorProcess, ProcessFactory, ask
from .protocol_process import ProtocolProcess, RawConnection, wait_until


def answer(process: ProtocolProcess, **fields: Any) -> None:
    process.send_message("details", seq=int(process.control.inspect_seq), **fields)


def request(processes: ProcessFactory) -> RawConnection:
    connection = processes.connection()
    connection.send({"type": "inspect", "id": 5, "pid": os.getpid()})
    return connection


def test_inspect_returns_the_answer_of_the_process(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    process = processes("a")
    process.report.launches = 77
    requester = request(processes)
    wait_until(lambda: process.control.inspect_seq == 1)
    answer(process, memory_mode="unified", ledger=[{"kind": "managed", "number": 2, "bytes": 9}], unhooked=["cuNew"])
    reply = requester.receive()
    assert reply and (reply["type"], reply["id"]) == ("reply", 5)
    result = reply["result"]
    assert (result["pid"], result["client"]) == (os.getpid(), "a")
    assert result["coordinator"] == {"pid": coordinator.pid, "socket": coordinator.path}
    assert result["page"]["report"]["launches"] == 77
    assert result["page"]["control"]["quantum_ns"] == 200_000_000
    assert result["details"]["ledger"] == [{"kind": "managed", "number": 2, "bytes": 9}]
    assert result["details"]["unhooked"] == ["cuNew"]


def test_simultaneous_inspections_are_both_answered(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    process = processes("a")
    both = [request(processes) for _ in range(2)]
    wait_until(lambda: process.control.inspect_seq == 2)
    answer(process, memory_mode="plain")
    for requester in both:
        reply = requester.receive()
        assert reply and reply["result"]["details"]["memory_mode"] == "plain"


def test_inspect_of_a_stopped_process_returns_its_page(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """A stopped process sends no details, so the reply has only the page."""
    process = processes("a")
    found: list[Any] = []
    requester = threading.Thread(
        target=lambda: found.append(coordinator.request(messages.Inspect(pid=os.getpid()))), daemon=True
    )
    requester.start()
    assert coordinator.status()["clients"]
    requester.join(10)
    assert found and found[0]["details"] is None and found[0]["page"]["header"]["version"] == 1
    assert process.control.inspect_seq == 1
    answer(process)  # late, so the coordinator must ignore it
    process.start_waiting()
    wait_until(lambda: process.phase == 1)


def test_inspect_is_for_the_owner_and_admins(
    coordinator: CoordinatorProcess, processes: ProcessFactory, as_other_user: Connect
) -> None:
    processes("a")
    assert ask(as_other_user(), "inspect", pid=os.getpid()) == "forbidden"
