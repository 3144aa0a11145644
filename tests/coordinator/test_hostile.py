"""Malformed, hostile, confused peers: each gets a clear error, and nobody else notices.

One coordinator serves all tests of this file; its log must show no bug at the end, and each test leaves it working.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client, CoordinatorError

from .conftest import Coordinator, Processes
from .fake_process import CLOSED, OPEN, SEALS, UUID, Connection, FakeProcess, lock_file, memory, wait_for


@pytest.fixture(autouse=True)
def others_do_not_notice(shared_coordinator: Coordinator, visitors: Processes) -> Iterator[None]:
    """A client runs and another one waits; afterwards they still do, and take turns."""
    runs, waits = visitors("runs", "GPU-others"), visitors("waits", "GPU-others")
    runs.run_turn()
    waits.wants()
    wait_for(lambda: runs.orders.contended)
    yield
    assert (runs.gate[0], waits.gate[0]) == (OPEN, CLOSED)
    shared_coordinator.request(messages.Release(client="runs"))
    wait_for(lambda: runs.gate[0] != OPEN)
    runs.drain()
    waits.wait_gate(OPEN)


def refusal(connection: Connection) -> dict[str, Any]:
    """The error that it gets, after which the connection ends."""
    answer = connection.receive()
    assert answer and answer["type"] == "error", answer
    assert connection.ended()
    return answer


NOT_MESSAGES = [
    b"hello\n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b'"status"\n',
    b"\xff\xfe\x00\n",
    b'{"type":"status"\n',
    b'{"type":"status"} {"type":"status"}\n',
    b'{"type":"make me admin"}\n',
    b'{"type":["status"]}\n',
    b'{"type":"status","id":"one"}\n',
    b'{"type":"drained"}\n',
    b'{"type":"drained","epoch":-1}\n',
    b'{"type":"drained","epoch":1073741824}\n',
    b'{"type":"drained","epoch":"1"}\n',
    b'{"type":"quota","client":"a","changes":[]}\n',
    b'{"type":"release","client":""}\n',
    b'{"type":"release","client":"a b"}\n',
    b'{"type":"release","client":"../../etc/passwd"}\n',
    b'{"type":"release","client":"forged\\n"}\n',
    b'{"type":"release","client":"' + b"x" * 200 + b'"}\n',
    b'{"type":"cell","state":"maybe","request":"1"}\n',
    b'{"type":"cell","state":"start\\n","request":"1"}\n',
    b'{"type":"register","client":"a","token":"t","gpus":0}\n',
    b'{"type":"register","client":"a","token":"t","gpus":1000000}\n',
    b'{"type":"register","client":"a","token":"\\ud800"}\n',
    b'{"type":"hello","client":"a","devices":[{"uuid":"../x"}]}\n',
    b'{"type":"hello","client":"a","devices":[{"memory":1}]}\n',
    b'{"type":"hello","client":"a","label":"' + b"x" * 2000 + b'"}\n',
    b"[" * 60000 + b"\n",
    b'{"type":"config","changes":{"a":' + b"[" * 30000 + b"]" * 30000 + b"}}\n",
    b'{"type":"config","changes":{"a":' + b'{"a":' * 10000 + b"1" + b"}" * 10000 + b"}}\n",
]


@pytest.mark.parametrize("line", NOT_MESSAGES, ids=[repr(line[:50]) for line in NOT_MESSAGES])
def test_what_is_no_message_is_answered_and_the_connection_goes_on(visitors: Processes, line: bytes) -> None:
    connection = visitors.connection()
    connection.send(line)
    answer = connection.receive()
    assert answer and (answer["type"], answer["reason"]) == ("error", "malformed")
    connection.send({"type": "status", "id": 7})
    answer = connection.receive()
    assert answer and (answer["type"], answer["id"]) == ("reply", 7)


def test_an_error_names_the_request_that_it_answers(visitors: Processes) -> None:
    connection = visitors.connection()
    for number, expected in ((5, 5), ("x", 0), (True, 0), (10**30, 10**30), (None, 0)):
        connection.send({"type": "nonsense", "id": number})
        answer = connection.receive()
        assert answer and answer.get("id", 0) == expected
        assert answer.get("id") is not True


def test_over_long_lines_end_the_connection(visitors: Processes) -> None:
    with_end, without_end = visitors.connection(), visitors.connection()
    with_end.send(b'{"type":"status","id":1,"padding":"' + b"x" * messages.MAX_LINE + b'"}\n')
    assert refusal(with_end)["reason"] == "too_long"
    with pytest.raises(ConnectionError):
        for _ in range(1000):
            without_end.send(b"x" * 65536)
    assert refusal(without_end)["reason"] == "too_long"


def test_a_line_of_the_longest_length_is_taken(visitors: Processes) -> None:
    connection = visitors.connection()
    line = b'{"type":"status","id":1,"padding":"'
    connection.send(line + b"x" * (messages.MAX_LINE - len(line) - 2) + b'"}\n')
    answer = connection.receive()
    assert answer and answer["type"] == "reply"


def test_lines_in_pieces_and_many_at_once(visitors: Processes) -> None:
    connection = visitors.connection()
    for byte in b'\n\n{"type":"status","id":1}':
        connection.send(bytes([byte]))
    connection.send(b'\n{"type":"status","id":2}\n{"type":"status","id":3}\n')
    assert [(connection.receive() or {})["id"] for _ in range(3)] == [1, 2, 3]


def test_half_a_line_and_gone(visitors: Processes) -> None:
    for _ in range(20):
        connection = visitors.connection()
        connection.send(b'{"type":"sta')
        connection.close()


@pytest.mark.parametrize(
    "message",
    [
        {"type": "wants"},
        {"type": "unwants"},
        {"type": "drained", "epoch": 1},
        {"type": "idle", "epoch": 1},
        {"type": "cell", "state": "start", "request": "1"},
    ],
    ids=lambda message: message["type"],
)
def test_process_messages_before_hello(visitors: Processes, message: dict[str, Any]) -> None:
    connection = visitors.connection()
    connection.send(message)
    error = refusal(connection)
    assert error["reason"] == "illegal_event"
    assert "before" in error["message"]


@pytest.mark.parametrize(
    "message",
    [
        {"type": "release", "client": "nobody"},
        {"type": "quota", "client": "nobody"},
        {"type": "forget", "client": "nobody"},
        {"type": "interrupt", "client": "nobody"},
    ],
    ids=lambda message: message["type"],
)
def test_unknown_clients(visitors: Processes, message: dict[str, Any]) -> None:
    connection = visitors.connection()
    connection.send({**message, "id": 3})
    answer = connection.receive() or {}
    assert (answer["id"], answer["reason"]) == (3, "unknown_client")
    assert "no client 'nobody' is known here" in answer["message"]


class TestHello:
    """Wrong descriptors, wrong pages, wrong tokens. A hello that is refused leaves nothing behind."""

    @pytest.fixture(autouse=True)
    def leaves_nothing(self, shared_coordinator: Coordinator) -> Iterator[None]:
        shared_coordinator.status()
        before = shared_coordinator.descriptors()
        yield
        wait_for(lambda: shared_coordinator.descriptors() <= before)
        assert shared_coordinator.client("hostile") is None

    @pytest.fixture
    def process(self, visitors: Processes) -> FakeProcess:
        return visitors("hostile", connect=False)

    def refused(self, visitors: Processes, process: FakeProcess, descriptors: list[int], **changes: Any) -> str:
        connection = visitors.connection()
        connection.send(process.hello(**changes), descriptors)
        error = refusal(connection)
        assert error["reason"] == "invalid"
        return str(error["message"])

    @pytest.mark.parametrize("count", [0, 1, 2])
    def test_too_few_descriptors(self, visitors: Processes, process: FakeProcess, count: int) -> None:
        given = [process.page_fd, process.client_fd, *process.locks][:count]
        assert f"came with {count} descriptors" in self.refused(visitors, process, given)

    def test_too_many_descriptors(self, visitors: Processes, process: FakeProcess) -> None:
        given = [process.page_fd, process.client_fd, *process.locks, process.page_fd]
        assert "came with 4 descriptors" in self.refused(visitors, process, given)

    def test_more_descriptors_than_anybody_needs(self, visitors: Processes, process: FakeProcess) -> None:
        connection = visitors.connection()
        connection.send(b"x", [process.page_fd] * 60)
        connection.send(b"y", [process.page_fd] * 60)
        assert connection.ended()

    def test_no_device(self, visitors: Processes, process: FakeProcess) -> None:
        assert "one or more devices" in self.refused(
            visitors, process, [process.page_fd, process.client_fd], devices=[]
        )

    @pytest.mark.parametrize(
        ("seals", "size", "magic"),
        [
            (0, None, None),
            (fcntl.F_SEAL_GROW, None, None),
            (fcntl.F_SEAL_SHRINK, None, None),
            (SEALS | fcntl.F_SEAL_WRITE, None, None),
            (SEALS, 64, None),
            (SEALS, 0, None),
            (SEALS, None, 0x12345678),
        ],
        ids=["unsealed", "may shrink", "may grow", "sealed against writing", "short", "empty", "foreign"],
    )
    def test_bad_pages(
        self, visitors: Processes, process: FakeProcess, seals: int, size: int | None, magic: int | None
    ) -> None:
        bad = memory("gpushare_page", seals, size, magic)
        try:
            self.refused(visitors, process, [bad, process.client_fd, *process.locks])
            if magic is None:
                self.refused(visitors, process, [process.page_fd, bad, *process.locks])
        finally:
            os.close(bad)

    def test_things_that_are_no_pages(self, visitors: Processes, process: FakeProcess, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(bytes(8192))
        file = os.open(tmp_path / "file", os.O_RDWR)
        pipe, other_end = os.pipe()
        pair = socket.socketpair()
        folder = os.open(tmp_path, os.O_RDONLY)
        for thing in (file, pipe, pair[0].fileno(), folder):
            self.refused(visitors, process, [thing, process.client_fd, *process.locks])
            self.refused(visitors, process, [process.page_fd, thing, *process.locks])
            self.refused(visitors, process, [process.page_fd, process.client_fd, thing])
        for descriptor in (file, pipe, other_end, folder):
            os.close(descriptor)
        for end in pair:
            end.close()

    def test_the_lock_file_of_another_device(self, visitors: Processes, process: FakeProcess) -> None:
        other = lock_file("GPU-other")
        try:
            message = self.refused(visitors, process, [process.page_fd, process.client_fd, other])
        finally:
            os.close(other)
        assert f"the descriptor for device {UUID} is not" in message

    def test_a_lock_file_that_cannot_be_locked(self, visitors: Processes, process: FakeProcess) -> None:
        """With O_PATH it would pass for the lock file, and the first grant would fail in the coordinator's hands."""
        name = os.open(f"/proc/self/fd/{process.locks[0]}", os.O_PATH)
        try:
            message = self.refused(visitors, process, [process.page_fd, process.client_fd, name])
        finally:
            os.close(name)
        assert "cannot be locked" in message

    def test_a_device_without_a_lock_file(self, visitors: Processes, process: FakeProcess) -> None:
        devices = [{"uuid": "GPU-nobody-made-this"}]
        message = self.refused(visitors, process, [process.page_fd, process.client_fd, *process.locks], devices=devices)
        assert "GPU-nobody-made-this" in message

    def test_a_wrong_token(self, visitors: Processes) -> None:
        victim = visitors("victim")
        victim.run_turn()
        thief = visitors("victim", token="guessed", connect=False)
        connection = visitors.connection()
        connection.send(thief.hello(), [thief.page_fd, thief.client_fd, *thief.locks])
        error = refusal(connection)
        assert (error["reason"], connection.descriptors) == ("forbidden", [])
        for kind in ("attach", "register"):
            connection = visitors.connection()
            connection.send({"type": kind, "client": "victim", "token": "guessed"})
            assert (connection.receive() or {})["reason"] == "forbidden"
            connection.close()
        assert victim.gate[0] == OPEN
        victim.close()

    def test_hello_twice(self, visitors: Processes, shared_coordinator: Coordinator) -> None:
        process = visitors("twice")
        assert process.connection
        process.connection.send(process.hello(), [process.page_fd, process.client_fd, *process.locks])
        assert "a second hello" in refusal(process.connection)["message"]
        wait_for(lambda: (shared_coordinator.client("twice") or {})["processes"] == [])

    def test_hello_after_attach(self, visitors: Processes, process: FakeProcess) -> None:
        connection = visitors.connection()
        connection.send({"type": "attach", "client": "kernel", "token": "t"})
        connection.receive()
        connection.send(process.hello(), [process.page_fd, process.client_fd, *process.locks])
        assert "a second hello or attach" in refusal(connection)["message"]

    def test_as_many_processes_as_there_are_slots(self, visitors: Processes) -> None:
        first = visitors("crowd")
        crowd = [visitors("crowd") for _ in range(63)]
        extra = visitors("crowd", connect=False)
        connection = visitors.connection()
        connection.send(extra.hello(), [extra.page_fd, extra.client_fd, *extra.locks])
        assert "has 64 processes already" in refusal(connection)["message"]
        assert len({process.orders.slot for process in [first, *crowd]}) == 64
        for process in crowd:
            process.close()
        first.close()

    def test_a_quota_that_makes_no_sense_is_not_used(
        self, visitors: Processes, shared_coordinator: Coordinator
    ) -> None:
        """The kernel starts all the same; the log says what was wrong."""
        for number, words in enumerate(("share=2", "memory=-1", "colour=red", "share", "memory=" + "9" * 400 + ".5")):
            process = visitors(f"odd{number}", quota=words)
            client = shared_coordinator.client(f"odd{number}")
            assert client and client["quota"]["memory"] is None and client["quota"]["share"] == 0
            assert repr(words)[1:20] in shared_coordinator.log.read_text()
            process.close()

    def test_pages_that_claim_absurd_quotas_and_slots(
        self, visitors: Processes, shared_coordinator: Coordinator
    ) -> None:
        """They may stem from an earlier coordinator, or from a process that wrote what it liked."""
        for number, (share, limit, memory_limit) in enumerate([(4_000_000_000, 1, 0), (900_000, 100_000, 1 << 63)]):
            process = visitors(f"absurd{number}", connect=False)
            process.orders.quota_set = 0xFFFFFFFF
            process.orders.share_ppm, process.orders.limit_ppm, process.orders.memory_limit = share, limit, memory_limit
            process.orders.slot = 0xFFFFFFFF
            process.connect()
            client = shared_coordinator.client(f"absurd{number}")
            assert client and client["quota"] == {
                "share": 0.0, "limit": 1.0, "memory": None, "resident": None, "service": "online"
            }  # fmt: skip
            assert process.orders.slot == 0
            process.close()

    def test_absurd_reports_are_bounded(self, visitors: Processes, shared_coordinator: Coordinator) -> None:
        process = visitors("liar")
        process.report.allocated = process.report.launches = process.report.refused = (1 << 64) - 1
        process.report.mode = process.report.phase = 0xFFFFFFFF
        client = shared_coordinator.client("liar")
        assert client and client["allocated"] == 1 << 50
        assert client["processes"][0]["mode"] == "unknown"
        process.close()

    def test_a_page_that_is_overwritten_with_garbage(
        self, visitors: Processes, shared_coordinator: Coordinator
    ) -> None:
        process = visitors("garbage")
        os.pwrite(process.page_fd, os.urandom(4096), 0)
        os.pwrite(process.client_fd, os.urandom(4096), 0)
        process.say("wants")
        process.wait_gate(OPEN)
        assert shared_coordinator.client("garbage")
        process.close()


def test_drained_of_an_epoch_that_was_never_granted(visitors: Processes) -> None:
    process = visitors("a")
    process.say("drained", epoch=(1 << 30) - 1)
    assert process.connection
    assert "which was never granted" in refusal(process.connection)["message"]


def test_drained_wants_and_idle_at_any_time(visitors: Processes) -> None:
    process = visitors("a")
    for _ in range(3):
        for message in ({"type": "drained", "epoch": 0}, {"type": "unwants"}, {"type": "wants"}, {"type": "wants"}):
            process.say(**{"kind": message["type"], **({"epoch": 0} if "epoch" in message else {})})  # type: ignore[arg-type]
        process.say("idle", epoch=123)
    process.wait_gate(OPEN)


def test_a_flood_of_messages(visitors: Processes) -> None:
    process = visitors("flood")
    assert process.connection
    for _ in range(50):
        process.connection.send(b'{"type":"wants"}\n{"type":"unwants"}\n' * 100)
    process.wants()
    process.wait_gate(OPEN)


def test_more_cells_than_anybody_runs(visitors: Processes, shared_coordinator: Coordinator) -> None:
    connection = visitors.connection()
    connection.send({"type": "attach", "client": "cells", "token": "t"})
    lines = [json.dumps({"type": "cell", "state": "start", "request": f"m{n}"}).encode() for n in range(3000)]
    for begin in range(0, 3000, 500):
        connection.send(b"\n".join(lines[begin : begin + 500]) + b"\n")
    wait_for(lambda: (shared_coordinator.client("cells") or {"cells": 0})["cells"] == 1024)
    connection.close()
    wait_for(lambda: (shared_coordinator.client("cells") or {})["cells"] == 0)


def test_a_subscriber_that_never_reads_is_dropped_or_kept_waiting(
    visitors: Processes, shared_coordinator: Coordinator
) -> None:
    connection = visitors.connection()
    for number in range(20_000):
        try:
            connection.socket.send(b'{"type":"status","id":%d}\n' % number, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError):
            break
    assert shared_coordinator.status()


def test_bad_quotas_change_nothing(visitors: Processes, shared_coordinator: Coordinator) -> None:
    process = visitors("a", quota="memory=1GiB")
    process.allocate(1 << 20)
    before = (shared_coordinator.client("a") or {})["quota"]
    for changes, reason, words in (
        ({"memory": -1}, "invalid", "memory: -1 is not a size"),
        ({"memory": 0}, "invalid", "memory=0 is out of range"),
        ({"memory": "many"}, "invalid", "'many' is not a size (examples: 8GiB"),
        ({"memory": True}, "invalid", "is not a size"),
        ({"memory": "9" * 400 + ".5"}, "invalid", "beyond any size"),
        ({"memory": "1KiB"}, "conflict", "memory=1024 is below what is allocated now, 1048576 bytes"),
        ({"share": 2}, "invalid", "share=2 is out of range: allowed is a fraction from 0 to 1"),
        ({"share": "lots"}, "invalid", "share: 'lots' is not a fraction"),
        ({"share": [0.5]}, "invalid", "is not a fraction"),
        ({"share": None}, "invalid", "share needs a value"),
        ({"share": 0.8, "limit": 0.5}, "invalid", "share=0.8 is above limit=0.5"),
        ({"limit": 0}, "invalid", "limit=0 would never let it run"),
        ({"service": {}}, "invalid", "service={} is unknown"),
        ({"colour": "red"}, "invalid", "unknown quota key 'colour'"),
        ({"share": 0.1, "memory": -1}, "invalid", "memory"),
    ):
        with pytest.raises(CoordinatorError) as error:
            shared_coordinator.request(messages.SetQuota(client="a", changes=changes))
        assert (error.value.reason, words in str(error.value)) == (reason, True), str(error.value)
    assert (shared_coordinator.client("a") or {})["quota"] == before
    assert process.orders.memory_limit == 1 << 30


def test_good_quotas_reach_the_page(visitors: Processes, shared_coordinator: Coordinator) -> None:
    process = visitors("a")
    for changes, field, value in (
        ({"memory": "2GiB"}, "memory_limit", 2 << 30),
        ({"memory": 3 << 30}, "memory_limit", 3 << 30),
        ({"memory": None}, "memory_limit", 8 << 30),
        ({"share": "25%"}, "share_ppm", 250_000),
        ({"limit": 0.5}, "limit_ppm", 500_000),
        ({"resident": "1GiB"}, "resident_target", 1 << 30),
        ({"resident": "none"}, "resident_target", (1 << 64) - 1),
    ):
        shared_coordinator.request(messages.SetQuota(client="a", changes=changes))
        assert getattr(process.orders, field) == value, changes


def test_a_client_that_nobody_may_register_twice_with_another_token(shared_coordinator: Coordinator) -> None:
    register = messages.Register(client="mine", token="mine", quota="share=0.5")
    assert shared_coordinator.request(register)["known"] is False
    assert shared_coordinator.request(register)["known"] is True
    with Client(shared_coordinator.path) as client, pytest.raises(CoordinatorError) as error:
        client.request(messages.Register(client="mine", token="another"))
    assert error.value.reason == "forbidden"
    with pytest.raises(CoordinatorError, match="share=2 is out of range"):
        shared_coordinator.request(messages.Register(client="fresh", token="t", quota="share=2"))
    assert shared_coordinator.client("fresh") is None
