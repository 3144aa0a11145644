"""Tests of malformed and wrong messages, and of checks of the values in messages.

One coordinator serves all tests of this file, and each test leaves the coordinator working.
The coordinator's log must have no bug at the end.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import CoordinatorError

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import receive_refusal, wait_until

pytestmark = pytest.mark.usefixtures("unaffected_bystander")


def test_invalid_message_is_answered_and_the_connection_stays(guest_processes: ProcessFactory) -> None:
    """The tests in `tests/hostile/` send random lines."""
    connection = guest_processes.connection()
    for line in (b"\xff\xfe\x00\n", b'{"type":"status"} {"type":"status"}\n'):
        connection.send(line)
        answer = connection.receive()
        assert answer and (answer["type"], answer["reason"]) == ("error", "malformed")
    connection.send({"type": "status", "id": 7})
    answer = connection.receive()
    assert answer and (answer["type"], answer["id"]) == ("reply", 7)


def test_an_error_names_the_request_that_it_answers(guest_processes: ProcessFactory) -> None:
    connection = guest_processes.connection()
    for number, expected in ((5, 5), ("x", 0), (True, 0), (10**30, 10**30), (None, 0)):
        connection.send({"type": "nonsense", "id": number})
        answer = connection.receive()
        assert answer and answer.get("id", 0) == expected
        assert answer.get("id") is not True


def test_over_long_lines_end_the_connection(guest_processes: ProcessFactory) -> None:
    with_end, without_end = guest_processes.connection(), guest_processes.connection()
    with_end.send(b'{"type":"status","id":1,"padding":"' + b"x" * messages.MAX_LINE + b'"}\n')
    assert receive_refusal(with_end)["reason"] == "too_long"
    with pytest.raises(ConnectionError):
        for _ in range(1000):
            without_end.send(b"x" * 65536)
    assert receive_refusal(without_end)["reason"] == "too_long"


def test_lines_in_pieces_and_many_at_once(guest_processes: ProcessFactory) -> None:
    connection = guest_processes.connection()
    for byte in b'\n\n{"type":"status","id":1}':
        connection.send(bytes([byte]))
    connection.send(b'\n{"type":"status","id":2}\n{"type":"status","id":3}\n')
    assert [(connection.receive() or {})["id"] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    "message", [{"type": "details"}, {"type": "cell", "state": "start", "request": "1"}, messages.DOORBELL], ids=str
)
def test_process_messages_before_hello_are_refused(
    guest_processes: ProcessFactory, message: dict[str, Any] | bytes
) -> None:
    connection = guest_processes.connection()
    connection.send(message)
    error = receive_refusal(connection)
    assert error["reason"] == "illegal_event"
    assert "before" in error["message"]


def test_requests_for_unknown_clients_are_refused(guest_processes: ProcessFactory) -> None:
    connection = guest_processes.connection()
    for kind in ("release", "hold", "suspend", "evict", "wait_status", "quota", "unregister", "interrupt"):
        connection.send({"type": kind, "client": "unknown", "id": 3})
        answer = connection.receive() or {}
        assert (answer["id"], answer["reason"]) == (3, "unknown_client")
        assert "has no client 'unknown'" in answer["message"]


def test_open_cells_are_limited(guest_processes: ProcessFactory, shared_coordinator: CoordinatorProcess) -> None:
    connection = guest_processes.kernel("cells")
    lines = [json.dumps({"type": "cell", "state": "start", "request": f"m{n}"}).encode() for n in range(3000)]
    for begin in range(0, 3000, 500):
        connection.send(b"\n".join(lines[begin : begin + 500]) + b"\n")
    wait_until(lambda: (shared_coordinator.client("cells") or {"cells": 0})["cells"] == 1024)
    connection.close()
    wait_until(lambda: (shared_coordinator.client("cells") or {})["cells"] == 0)


def test_bad_quotas_change_nothing(guest_processes: ProcessFactory, shared_coordinator: CoordinatorProcess) -> None:
    process = guest_processes("a", quota="memory=1GiB")
    process.allocate(2 << 20)
    before = (shared_coordinator.client("a") or {})["quota"]
    for changes, reason, words in (
        ({"memory": -1}, "invalid", "memory=-1 is out of range: allowed is a size from 1 MiB"),
        ({"memory": "1KiB"}, "invalid", "memory=1KiB is out of range: allowed is a size from 1 MiB"),
        ({"memory": "1MiB"}, "conflict", "memory=1MiB is below what is allocated now, 2 MiB"),
        ({"share": 0.8, "limit": 0.5}, "invalid", "share=0.8 is above limit=0.5"),
        ({"share": 0.1, "memory": True}, "invalid", "is not a size"),
        ({"colour": "red"}, "invalid", "unknown quota key 'colour'"),
    ):
        with pytest.raises(CoordinatorError) as error:
            shared_coordinator.request(messages.SetQuota(client="a", changes=changes))
        assert (error.value.reason, words in str(error.value)) == (reason, True), str(error.value)
    assert (shared_coordinator.client("a") or {})["quota"] == before
    assert process.control.memory_limit == 1 << 30


def test_good_quotas_reach_the_page(guest_processes: ProcessFactory, shared_coordinator: CoordinatorProcess) -> None:
    process = guest_processes("a")
    for changes, field, value in (
        ({"memory": "2GiB"}, "memory_limit", 2 << 30),
        ({"memory": 3 << 30}, "memory_limit", 3 << 30),
        ({"memory": None}, "memory_limit", 8 << 30),
        ({"share": "25%"}, "share_ppm", 250_000),
        ({"limit": 0.5}, "limit_ppm", 500_000),
        ({"resident": "1GiB"}, "resident_quota", 1 << 30),
        ({"resident": "none"}, "resident_quota", 0),
    ):
        shared_coordinator.request(messages.SetQuota(client="a", changes=changes))
        assert getattr(process.control, field) == value, changes


def test_client_registers_once_with_a_valid_quota(shared_coordinator: CoordinatorProcess) -> None:
    register = messages.Register(client="mine", token="mine", quota="share=0.5")
    assert shared_coordinator.request(register)["known"] is False
    assert shared_coordinator.request(register)["known"] is True
    with pytest.raises(CoordinatorError, match="share=2 is out of range"):
        shared_coordinator.request(messages.Register(client="fresh", token="t", quota="share=2"))
    assert shared_coordinator.client("fresh") is None


def test_labels_have_no_control_characters(shared_coordinator: CoordinatorProcess) -> None:
    shared_coordinator.request(messages.Register(client="escapes", token="secret", label="a\x1b[31m\nred\u202e"))
    client = shared_coordinator.client("escapes")
    assert client and client["label"] == "a [31m red "
