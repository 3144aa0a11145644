"""Hello with wrong descriptors, wrong pages, wrong tokens: refused, nothing left behind, nobody else notices."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Coordinator, Processes
from .fake_process import OPEN, SEALS, UUID, FakeProcess, lock_file, memory, refusal, wait_for

pytestmark = pytest.mark.usefixtures("others_do_not_notice")


@pytest.fixture(autouse=True)
def leaves_nothing(shared_coordinator: Coordinator) -> Iterator[None]:
    shared_coordinator.status()
    before = shared_coordinator.descriptors()
    yield
    wait_for(lambda: shared_coordinator.descriptors() <= before)
    assert shared_coordinator.client("hostile") is None


@pytest.fixture
def process(visitors: Processes) -> FakeProcess:
    return visitors("hostile", connect=False)


def refused(visitors: Processes, process: FakeProcess, descriptors: list[int], **changes: Any) -> str:
    connection = visitors.connection()
    connection.send(process.hello(**changes), descriptors)
    error = refusal(connection)
    assert error["reason"] == "invalid"
    return str(error["message"])


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_descriptors(visitors: Processes, process: FakeProcess, count: int) -> None:
    given = [process.page_fd, process.client_fd, *process.locks][:count]
    assert f"came with {count} descriptors" in refused(visitors, process, given)


def test_too_many_descriptors(visitors: Processes, process: FakeProcess) -> None:
    given = [process.page_fd, process.client_fd, *process.locks, process.page_fd]
    assert "came with 4 descriptors" in refused(visitors, process, given)


def test_more_descriptors_than_anybody_needs(visitors: Processes, process: FakeProcess) -> None:
    connection = visitors.connection()
    connection.send(b"x", [process.page_fd] * 60)
    connection.send(b"y", [process.page_fd] * 60)
    assert connection.ended()


def test_no_device(visitors: Processes, process: FakeProcess) -> None:
    assert "one or more devices" in refused(visitors, process, [process.page_fd, process.client_fd], devices=[])


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
def test_bad_pages(visitors: Processes, process: FakeProcess, seals: int, size: int | None, magic: int | None) -> None:
    bad = memory("gpushare_page", seals, size, magic)
    try:
        refused(visitors, process, [bad, process.client_fd, *process.locks])
        if magic is None:
            refused(visitors, process, [process.page_fd, bad, *process.locks])
    finally:
        os.close(bad)


def test_things_that_are_no_pages(visitors: Processes, process: FakeProcess, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8192))
    file = os.open(tmp_path / "file", os.O_RDWR)
    pipe, other_end = os.pipe()
    pair = socket.socketpair()
    folder = os.open(tmp_path, os.O_RDONLY)
    for thing in (file, pipe, pair[0].fileno(), folder):
        refused(visitors, process, [thing, process.client_fd, *process.locks])
        refused(visitors, process, [process.page_fd, thing, *process.locks])
        refused(visitors, process, [process.page_fd, process.client_fd, thing])
    for descriptor in (file, pipe, other_end, folder):
        os.close(descriptor)
    for end in pair:
        end.close()


def test_the_lock_file_of_another_device(visitors: Processes, process: FakeProcess) -> None:
    other = lock_file("GPU-other")
    try:
        message = refused(visitors, process, [process.page_fd, process.client_fd, other])
    finally:
        os.close(other)
    assert f"the descriptor for device {UUID} is not" in message


def test_a_lock_file_that_cannot_be_locked(visitors: Processes, process: FakeProcess) -> None:
    """With O_PATH it would pass for the lock file, and the first grant would fail in the coordinator's hands."""
    name = os.open(f"/proc/self/fd/{process.locks[0]}", os.O_PATH)
    try:
        message = refused(visitors, process, [process.page_fd, process.client_fd, name])
    finally:
        os.close(name)
    assert "cannot be locked" in message


def test_a_device_without_a_lock_file(visitors: Processes, process: FakeProcess) -> None:
    devices = [{"uuid": "GPU-nobody-made-this"}]
    message = refused(visitors, process, [process.page_fd, process.client_fd, *process.locks], devices=devices)
    assert "GPU-nobody-made-this" in message


def test_a_wrong_token(visitors: Processes) -> None:
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


def test_hello_twice(visitors: Processes, shared_coordinator: Coordinator) -> None:
    process = visitors("twice")
    assert process.connection
    process.connection.send(process.hello(), [process.page_fd, process.client_fd, *process.locks])
    assert "a second hello" in refusal(process.connection)["message"]
    wait_for(lambda: (shared_coordinator.client("twice") or {})["processes"] == [])


def test_hello_after_attach(visitors: Processes, process: FakeProcess) -> None:
    connection = visitors.connection()
    connection.send({"type": "attach", "client": "kernel", "token": "t"})
    connection.receive()
    connection.send(process.hello(), [process.page_fd, process.client_fd, *process.locks])
    assert "a second hello or attach" in refusal(connection)["message"]


def test_as_many_processes_as_there_are_slots(visitors: Processes) -> None:
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


def test_a_quota_that_makes_no_sense_is_not_used(visitors: Processes, shared_coordinator: Coordinator) -> None:
    """The kernel starts all the same; the log says what was wrong."""
    for number, words in enumerate(("share=2", "memory=-1", "colour=red", "share", "memory=" + "9" * 400 + ".5")):
        process = visitors(f"odd{number}", quota=words)
        client = shared_coordinator.client(f"odd{number}")
        assert client and client["quota"]["memory"] is None and client["quota"]["share"] == 0
        assert repr(words)[1:20] in shared_coordinator.log.read_text()
        process.close()


def test_pages_that_claim_absurd_quotas_and_slots(visitors: Processes, shared_coordinator: Coordinator) -> None:
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


def test_absurd_reports_are_bounded(visitors: Processes, shared_coordinator: Coordinator) -> None:
    process = visitors("liar")
    process.report.allocated = process.report.launches = process.report.refused = (1 << 64) - 1
    process.report.mode = process.report.phase = 0xFFFFFFFF
    client = shared_coordinator.client("liar")
    assert client and client["allocated"] == 1 << 50
    assert client["processes"][0]["mode"] == "unknown"
    process.close()


def test_a_page_that_is_overwritten_with_garbage(visitors: Processes, shared_coordinator: Coordinator) -> None:
    process = visitors("garbage")
    os.pwrite(process.page_fd, os.urandom(4096), 0)
    os.pwrite(process.client_fd, os.urandom(4096), 0)
    process.say("wants")
    process.wait_gate(OPEN)
    assert shared_coordinator.client("garbage")
    process.close()
