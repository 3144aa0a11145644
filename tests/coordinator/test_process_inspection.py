"""Tests of the inspection of a process through its coordinator: access, results, and a stopped process."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_gpushare.coordinator.monitoring.process_inspection import ANSWER_TIMEOUT_SECONDS
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import IN

from ..hostile.in_process_coordinator import ConnectedPair, InProcessCoordinator, WellBehavedClient
from .conftest import Connect, CoordinatorProcess, ProcessFactory, ask
from .protocol_process import UUID, ProtocolProcess

RequestInspection = Callable[[], ConnectedPair]


@pytest.fixture
def process(in_process: InProcessCoordinator) -> Iterator[WellBehavedClient]:
    with contextlib.closing(WellBehavedClient(in_process, "a", UUID)) as made:
        yield made


@pytest.fixture
def request_inspection(in_process: InProcessCoordinator) -> Iterator[RequestInspection]:
    """Provide a function that requests the inspection of this process."""
    with contextlib.ExitStack() as stack:

        def send() -> ConnectedPair:
            connection = stack.enter_context(contextlib.closing(in_process.connect(0)))
            connection.send({"type": "inspect", "id": 5, "pid": os.getpid()})
            in_process.handle_pending()
            return connection

        yield send


def answer(in_process: InProcessCoordinator, process: ProtocolProcess, **fields: Any) -> None:
    process.send_message("details", seq=int(process.control.inspect_seq), **fields)
    in_process.handle_pending()


def test_inspect_returns_the_answer_of_the_process(
    in_process: InProcessCoordinator, process: WellBehavedClient, request_inspection: RequestInspection
) -> None:
    process.report.launches = 77
    requester = request_inspection()
    assert process.control.inspect_seq == 1
    ledger = [{"kind": "managed", "number": 2, "bytes": 9}]
    answer(in_process, process, memory_mode="unified", ledger=ledger, unhooked=["cuNew"])
    reply = requester.next_message()
    assert reply and (reply["type"], reply["id"]) == ("reply", 5)
    result = reply["result"]
    assert (result["pid"], result["client"]) == (os.getpid(), "a")
    assert result["coordinator"] == {"pid": os.getpid(), "socket": in_process.coordinator.state.socket_path}
    assert result["page"]["report"]["launches"] == 77
    assert result["page"]["control"]["quantum_ns"] == process.control.quantum_ns > 0
    assert result["details"]["ledger"] == ledger
    assert result["details"]["unhooked"] == ["cuNew"]


def test_simultaneous_inspections_are_both_answered(
    in_process: InProcessCoordinator, process: WellBehavedClient, request_inspection: RequestInspection
) -> None:
    both = [request_inspection() for _ in range(2)]
    assert process.control.inspect_seq == 2
    answer(in_process, process, memory_mode="plain")
    for requester in both:
        reply = requester.next_message()
        assert reply and reply["result"]["details"]["memory_mode"] == "plain"


def test_inspect_of_a_stopped_process_returns_its_page(
    in_process: InProcessCoordinator, process: WellBehavedClient, request_inspection: RequestInspection
) -> None:
    """A stopped process sends no details, so the reply has only the page."""
    requester = request_inspection()
    assert in_process.request(messages.Status())["clients"]
    assert requester.next_message() is None
    in_process.pass_time(ANSWER_TIMEOUT_SECONDS)
    result = (requester.next_message() or {})["result"]
    assert result["details"] is None and result["page"]["header"]["version"] == 1
    assert process.control.inspect_seq == 1
    answer(in_process, process)  # late, so the coordinator must ignore it
    process.start_waiting()
    in_process.pass_time(0.1)
    process.run_step()
    assert process.phase == IN
    in_process.check()


def test_details_have_no_control_characters(
    in_process: InProcessCoordinator, process: WellBehavedClient, request_inspection: RequestInspection
) -> None:
    requester = request_inspection()
    ledger = [{"kind": "\x1b[2J", "number": 1, "bytes": 1}]
    answer(in_process, process, memory_mode="\r", ledger=ledger, unhooked=["cu\x9b1m"])
    reply = requester.next_message()
    assert reply and "\\u001b" not in json.dumps(reply) and "\\u009b" not in json.dumps(reply)
    assert reply["result"]["details"]["unhooked"] == ["cu 1m"]


def test_inspect_is_for_the_owner_and_admins(
    coordinator: CoordinatorProcess, processes: ProcessFactory, as_other_user: Connect
) -> None:
    processes("a")
    assert ask(as_other_user(), "inspect", pid=os.getpid()) == "forbidden"
