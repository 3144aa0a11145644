"""Tests of hello messages: refused descriptors, pages and tokens, the number of processes, and invalid values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.agent.pages import create_memfd
from jupyter_gpushare.wire.page import IN

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import ProtocolProcess, receive_refusal, wait_until

pytestmark = pytest.mark.usefixtures("unaffected_bystander")


@pytest.fixture(autouse=True)
def leaves_nothing(shared_coordinator: CoordinatorProcess) -> Iterator[None]:
    shared_coordinator.status()
    before = shared_coordinator.descriptors()
    yield
    wait_until(lambda: shared_coordinator.descriptors() <= before)
    assert shared_coordinator.client("hostile") is None


@pytest.fixture
def process(guest_processes: ProcessFactory) -> ProtocolProcess:
    return guest_processes("hostile", connect=False)


def refused(guest_processes: ProcessFactory, process: ProtocolProcess, descriptors: list[int], **changes: Any) -> str:
    connection = guest_processes.connection()
    connection.send(process.hello(**changes), descriptors)
    error = receive_refusal(connection)
    assert error["reason"] == "invalid"
    return str(error["message"])


@pytest.mark.parametrize(
    ("count", "changes", "message"),
    [
        (0, {}, "came with 0 descriptors"),
        (1, {}, "came with 1 descriptors"),
        (2, {"devices": []}, "one or more devices"),
        (2, {"devices": [{"uuid": f"GPU-hoard-{number}"} for number in range(64)]}, "no room in the table of devices"),
    ],
    ids=["no descriptor", "one descriptor", "no device", "more devices than the table has room for"],
)
def test_malformed_hello_is_refused(
    guest_processes: ProcessFactory, process: ProtocolProcess, count: int, changes: dict[str, Any], message: str
) -> None:
    assert message in refused(guest_processes, process, process.descriptors_of_hello()[:count], **changes)


@pytest.mark.parametrize("count", [3, 60])
def test_hello_with_too_many_descriptors_is_refused(
    guest_processes: ProcessFactory, process: ProtocolProcess, count: int
) -> None:
    connection = guest_processes.connection()
    connection.send(process.hello(), process.descriptors_of_hello()[:1] * count)
    assert connection.ended()


def test_hello_with_an_invalid_page_is_refused(
    guest_processes: ProcessFactory, process: ProtocolProcess, tmp_path: Path
) -> None:
    """The tests of `wire.page` cover all kinds of invalid pages."""
    (tmp_path / "file").write_bytes(bytes(8192))
    file = os.open(tmp_path / "file", os.O_RDWR)
    page, client_page = process.descriptors_of_hello()
    for bad in (create_memfd("gpushare_page", 0), create_memfd("gpushare_client", 0), file):
        refused(guest_processes, process, [bad, client_page])
        refused(guest_processes, process, [page, bad])
        os.close(bad)


def test_hello_with_a_wrong_token_is_refused(guest_processes: ProcessFactory) -> None:
    victim = guest_processes("victim")
    victim.run_turn()
    thief = guest_processes("victim", token="guessed", connect=False)
    connection = guest_processes.connection()
    connection.send(thief.hello(), thief.descriptors_of_hello())
    error = receive_refusal(connection)
    assert (error["reason"], connection.descriptors) == ("forbidden", [])
    for kind in ("attach", "register"):
        connection = guest_processes.connection()
        connection.send({"type": kind, "client": "victim", "token": "guessed"})
        assert (connection.receive() or {})["reason"] == "forbidden"
        connection.close()
    assert victim.phase == IN


def test_second_hello_is_refused(guest_processes: ProcessFactory, shared_coordinator: CoordinatorProcess) -> None:
    process = guest_processes("twice")
    process.link.send(process.hello())
    wait_until(lambda: process.refusals)
    assert "a second hello" in process.refusals[0]["message"]
    wait_until(lambda: (shared_coordinator.client("twice") or {})["processes"] == [])


def test_hello_after_attach_is_refused(guest_processes: ProcessFactory, process: ProtocolProcess) -> None:
    connection = guest_processes.kernel("kernel")
    connection.send(process.hello(), process.descriptors_of_hello())
    assert "a second hello or attach" in receive_refusal(connection)["message"]


def test_as_many_processes_as_there_are_slots(guest_processes: ProcessFactory) -> None:
    first = guest_processes("crowd")
    others = [guest_processes("crowd") for _ in range(63)]
    extra = guest_processes("crowd", connect=False)
    connection = guest_processes.connection()
    connection.send(extra.hello(), extra.descriptors_of_hello())
    assert "has 64 processes already" in receive_refusal(connection)["message"]
    assert len({process.control.slot for process in [first, *others]}) == 64


def test_invalid_quota_of_a_hello_is_ignored(
    guest_processes: ProcessFactory, shared_coordinator: CoordinatorProcess
) -> None:
    """The kernel starts nevertheless, and the log has the reason."""
    for number, quota in enumerate(("share=2", "memory=-1", "colour=red", "share", "memory=" + "9" * 400 + ".5")):
        guest_processes(f"odd{number}", quota=quota)
        client = shared_coordinator.client(f"odd{number}")
        assert client and client["quota"]["memory"] is None and client["quota"]["share"] == 0
        assert repr(quota)[1:20] in shared_coordinator.log.read_text()


def test_pages_that_claim_absurd_quotas_and_slots(
    guest_processes: ProcessFactory, shared_coordinator: CoordinatorProcess
) -> None:
    """The values may come from an earlier coordinator or from a hostile process."""
    for number, (share, limit, memory_limit) in enumerate([(4_000_000_000, 1, 0), (900_000, 100_000, 1 << 63)]):
        process = guest_processes(f"absurd{number}", connect=False)
        process.control.quota_flags = 0xFFFFFFFF
        process.control.share_ppm, process.control.limit_ppm, process.control.memory_limit = share, limit, memory_limit
        process.control.slot = 0xFFFFFFFF
        process.send_hello()
        client = shared_coordinator.client(f"absurd{number}")
        assert client and client["quota"] == {
            "share": 0.0, "limit": 1.0, "memory": None, "resident": None, "service": "online"
        }  # fmt: skip
        assert process.control.slot == 0
