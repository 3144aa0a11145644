"""Tests of requests for room on a full device.

A request is refused by its number if no memory can be evicted, or if an eviction is stuck.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_gpushare.coordinator.clients.process_handle import ProcessHandle
from jupyter_gpushare.core.interface import events as ev

from .page_sync_harness import DEVICE, MIB, PageSyncHarness, set_memory


@pytest.fixture
def harness() -> Iterator[PageSyncHarness]:
    made = PageSyncHarness()
    yield made
    made.close()


def request_room(handle: ProcessHandle, mib: int) -> int:
    """Report in the page that an allocation of `mib` MiB finds the device full, and return the request's number."""
    handle.page.report.allocated += mib * MIB
    handle.page.report.resident += mib * MIB
    handle.page.report.unmet_bytes = mib * MIB
    handle.page.report.unmet_request_seq += 1
    return int(handle.page.report.unmet_request_seq)


def test_later_request_does_not_get_an_earlier_answer(harness: PageSyncHarness) -> None:
    """While the coordinator handles a request that cannot be met, the program frees memory and requests less."""
    handle = harness.process("a", 400)
    harness.process("plain", 600, unmovable=600, runs=False)
    harness.process("idle", 20, runs=False)
    first = request_room(handle, 100)

    def another() -> None:
        harness.meanwhile = lambda: None
        set_memory(handle, 100)
        request_room(handle, 50)

    harness.meanwhile = another
    assert harness.answer(handle) == first
    assert harness.answer(handle) == first, "the second request was refused, although the idle client can be evicted"


def test_request_after_a_met_request_is_not_refused(harness: PageSyncHarness) -> None:
    handle = harness.process("a", 480)
    harness.process("b", 500)
    request_room(handle, 16)
    harness.process("c", 0, runs=False)

    def another() -> None:
        harness.meanwhile = lambda: None
        handle.page.report.unmet_request_seq += 1
        handle.page.report.unmet_bytes = 0
        request_room(handle, 16)

    harness.meanwhile = another
    harness.answer(handle)
    assert harness.answer(handle) == 0


def test_colocated_clients_are_separated_and_the_request_waits(harness: PageSyncHarness) -> None:
    handle, other = harness.process("a", 480), harness.process("b", 464)
    request_room(handle, 16)
    assert harness.answer(handle) == 0
    assert {name: client.phase for name, client in harness.scheduler.clients.items()} == {
        "a": "running",
        "b": "draining",
    }
    harness.dispatch(ev.TurnLeft(other.number, harness.scheduler.clients["b"].grant.turn))  # type: ignore[union-attr]
    assert harness.answer(handle) == 0, "the request was refused before the memory of b was evicted"


def test_request_is_refused_if_evictions_do_not_suffice(harness: PageSyncHarness) -> None:
    """A foreign process has the rest of the device."""
    handle, idle = harness.process("a", 400), harness.process("idle", 50, runs=False)
    number = request_room(handle, 100)
    assert harness.answer(handle) == 0
    assert harness.scheduler.residency.target("idle", DEVICE) == 0
    idle.page.report.resident = 0
    assert harness.answer(handle) == number


def test_request_stops_waiting_for_a_stuck_eviction(harness: PageSyncHarness) -> None:
    handle = harness.process("a", 400)
    harness.process("stopped", 50, runs=False)
    number = request_room(handle, 100)
    for _ in range(14):
        assert harness.answer(handle) == 0
        harness.now += 1.0
    harness.now += 2.0
    assert harness.answer(handle) == number


def test_time_between_turns_does_not_count_for_a_stuck_eviction(harness: PageSyncHarness) -> None:
    """The other client may evict nothing while it runs."""
    handle = harness.process("a", 400)
    harness.process("other", 50, runs=False)
    request_room(handle, 100)
    assert harness.answer(handle) == 0
    client = harness.scheduler.clients["a"]
    harness.dispatch(ev.TurnLeft(handle.number, client.grant.turn))  # type: ignore[union-attr]
    harness.now += 60.0
    harness.dispatch(ev.GateWaitStarted(handle.number))
    harness.dispatch(ev.TurnEntered(handle.number, client.permit.turn, harness.now))  # type: ignore[union-attr]
    handle.page.report.unmet_request_seq += 1
    for _ in range(15):
        assert harness.answer(handle) == 0
        harness.now += 1.0
    harness.now += 1.0
    assert harness.answer(handle) == handle.page.report.unmet_request_seq


def test_impossible_request_is_refused_at_once(harness: PageSyncHarness) -> None:
    handle = harness.process("a", 100)
    harness.process("b", 300)
    harness.process("plain", 200, unmovable=200, runs=False)
    number = request_room(handle, 725)
    assert harness.answer(handle) == number
    assert {harness.scheduler.clients[name].phase for name in ("a", "b")} == {"running"}


def test_request_is_refused_after_a_fresh_sample_of_the_pages(harness: PageSyncHarness) -> None:
    """The client in mode plain has allocated since the last sample, so nothing can be evicted and no turn must end."""
    handle, plain = harness.process("a", 100), harness.process("plain", 0, runs=False)
    harness.process("b", 100)
    set_memory(plain, 700, unmovable=700)
    number = request_room(handle, 300)
    assert harness.answer(handle) == number
    assert {harness.scheduler.clients[name].phase for name in ("a", "b")} == {"running"}


def test_nothing_is_refused_after_the_turn(harness: PageSyncHarness) -> None:
    """The process repeats the request in its next turn."""
    handle = harness.process("a", 400)
    harness.process("plain", 600, unmovable=600, runs=False)
    harness.dispatch(ev.ReleaseRequested("a"))
    request_room(handle, 100)
    assert harness.answer(handle) == 0


def test_request_of_a_turn_that_does_not_end_is_refused_after_the_delay(harness: PageSyncHarness) -> None:
    """The end of the turn depends on a call, and the call depends on memory that has no room."""
    handle = harness.process("a", 400)
    harness.process("plain", 600, unmovable=600, runs=False)
    harness.dispatch(ev.ReleaseRequested("a"))
    number = request_room(handle, 100)
    for _ in range(15):
        assert harness.answer(handle) == 0
        harness.now += 1.0
    harness.now += 1.0
    assert harness.answer(handle) == number


def test_prefetched_memory_can_be_evicted_before_its_owner_reports_that_memory(harness: PageSyncHarness) -> None:
    handle, waits = harness.process("a", 400), harness.process("waits", 300, runs=False)
    waits.page.report.resident = 0
    harness.page_sync.read_memory(harness.runtimes["waits"])
    harness.dispatch(ev.GateWaitStarted(waits.number))
    assert harness.scheduler.devices[DEVICE].prefetching_client is harness.scheduler.clients["waits"]
    number = request_room(handle, 100)
    assert harness.answer(handle) == 0
    assert harness.scheduler.devices[DEVICE].prefetching_client is None
    harness.now += 0.05
    assert harness.answer(handle) == 0
    harness.now += 0.06
    assert harness.answer(handle) == number


def test_changes_of_the_own_memory_are_no_evictions(harness: PageSyncHarness) -> None:
    """Siblings evict and restore their memory while they drain, and other clients allocate while they wait."""
    handle, waits = harness.process("a", 400), harness.process("waits", 0, runs=False)
    harness.process("stopped", 50, runs=False)
    number = request_room(handle, 100)
    for second in range(16):
        assert harness.answer(handle) == 0
        handle.page.report.resident -= MIB
        waits.page.report.allocated = second * MIB
        harness.now += 1.0
    assert harness.answer(handle) == number


def test_memory_that_comes_back_after_each_eviction_delays_no_refusal(harness: PageSyncHarness) -> None:
    """Each eviction frees memory, but the other client, which does not run, allocates again."""
    handle, other = harness.process("a", 400), harness.process("other", 50, runs=False)
    number = request_room(handle, 100)
    for second in range(18):
        set_memory(other, 60 if second % 2 else 50)
        answer = harness.answer(handle)
        harness.now += 1.0
    assert answer == number


def test_each_eviction_restarts_the_delay_of_a_refusal(harness: PageSyncHarness) -> None:
    handle, other = harness.process("a", 400), harness.process("other", 90, runs=False)
    request_room(handle, 100)
    for evictions in range(4):
        set_memory(other, 90 - 10 * evictions)
        for _ in range(14):
            assert harness.answer(handle) == 0
            harness.now += 1.0


def test_wait_of_a_request_that_was_met_does_not_count_for_a_later_request(harness: PageSyncHarness) -> None:
    handle = harness.process("a", 400)
    harness.process("stopped", 50, runs=False)
    request_room(handle, 100)
    for _ in range(14):
        assert harness.answer(handle) == 0
        harness.now += 1.0
    handle.page.report.unmet_bytes = 0
    handle.page.report.unmet_request_seq += 1
    assert harness.answer(handle) == 0
    request_room(handle, 10)
    for _ in range(4):
        assert harness.answer(handle) == 0
        harness.now += 1.0


def test_delay_of_a_refusal_goes_on_in_the_next_turn(harness: PageSyncHarness) -> None:
    """The memory of the other client is an allocation that waits for room itself, and cannot be evicted."""
    handle = harness.process("a", 400)
    harness.process("allocates", 50, runs=False)
    number = request_room(handle, 100)
    client = harness.scheduler.clients["a"]
    for _ in range(16):
        assert harness.answer(handle) == 0
        harness.now += 1.0
        assert client.grant
        harness.dispatch(ev.ReleaseRequested("a"))
        harness.dispatch(ev.TurnLeft(handle.number, client.grant.turn))
        harness.dispatch(ev.GateWaitStarted(handle.number))
        assert client.permit and client.permit.may
        harness.dispatch(ev.TurnEntered(handle.number, client.permit.turn, harness.now))
    assert harness.answer(handle) == number


def test_delay_of_a_refusal_adds_up_over_short_turns_between_long_ones(harness: PageSyncHarness) -> None:
    """Otherwise the program would wait in each of its turns, without an end."""
    handle = harness.process("a", 400)
    harness.process("stopped", 50, runs=False)
    request_room(handle, 100)
    client = harness.scheduler.clients["a"]
    answers = []
    for _ in range(6):
        for _ in range(4):
            answers.append(harness.answer(handle))
            harness.now += 1.0
        assert client.grant
        harness.dispatch(ev.ReleaseRequested("a"))
        harness.dispatch(ev.TurnLeft(handle.number, client.grant.turn))
        harness.now += 60.0
        harness.dispatch(ev.GateWaitStarted(handle.number))
        assert client.permit and client.permit.may
        harness.dispatch(ev.TurnEntered(handle.number, client.permit.turn, harness.now))
        handle.page.report.unmet_request_seq += 1
    assert not any(answers[:16])
    assert answers[-1] > 0


def test_wait_for_unmovable_memory_is_refused_after_a_time(harness: PageSyncHarness) -> None:
    """The refusal names the client that has the memory. A wait for unbacked memory has no end."""
    sent: list[bytes] = []
    harness.process("plain", 600, unmovable=600, runs=False)
    handle = harness.process("swap", 500, runs=False)
    handle.connection = cast(Any, SimpleNamespace(send=lambda line: bool(sent.append(line)) or True, pid=0))
    handle.page.report.resident = 0
    harness.page_sync.read_memory(harness.runtimes["swap"])
    harness.dispatch(ev.GateWaitStarted(handle.number))
    refusals = []
    for second in range(40):
        harness.now = float(second)
        harness.page_sync.refuse_room(harness.runtimes["swap"])
        if messages := [json.loads(line) for line in sent if b"room_refused" in line]:
            refusals.append(second)
            assert "600 MiB of plain cannot leave the GPU" in messages[0]["reason"]
        sent.clear()
    assert refusals == [16, 32]
    harness.handles["plain"].page.report.unmovable = 0
    harness.page_sync.read_memory(harness.runtimes["plain"])
    harness.now = 80.0
    harness.page_sync.refuse_room(harness.runtimes["swap"])
    assert not [line for line in sent if b"room_refused" in line]
