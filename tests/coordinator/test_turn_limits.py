"""Tests of turn limits on pages, and of the memory modes in which a client spills."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .page_sync_harness import MIB, PageSyncHarness

UNIFIED, SWAP, PLAIN = 1, 2, 3


@pytest.fixture
def harness() -> Iterator[PageSyncHarness]:
    made = PageSyncHarness()
    yield made
    made.close()


@pytest.mark.parametrize(("mode", "can_spill"), [(UNIFIED, True), (SWAP, False), (PLAIN, False), (0, False)])
def test_only_unified_memory_spills(harness: PageSyncHarness, mode: int, can_spill: bool) -> None:
    harness.process("one", 300).page.report.memory_mode = mode
    harness.page_sync.read_memory(harness.runtimes["one"])
    assert harness.scheduler.clients["one"].can_spill == can_spill


def test_a_client_with_a_process_of_another_mode_does_not_spill(harness: PageSyncHarness) -> None:
    one, two = harness.process("one", 300), harness.process("two", 300, runs=False)
    one.page.report.memory_mode, two.page.report.memory_mode = UNIFIED, SWAP
    runtime = harness.runtimes["one"]
    harness.page_sync.read_memory(runtime)
    assert harness.scheduler.clients["one"].can_spill
    runtime.processes[two.number] = two
    harness.page_sync.read_memory(runtime)
    assert not harness.scheduler.clients["one"].can_spill


def test_processes_have_parts_of_the_limit_by_their_memory(harness: PageSyncHarness) -> None:
    one, two = harness.process("one", 300), harness.process("two", 100, runs=False)
    runtime = harness.runtimes["one"]
    runtime.processes[two.number] = two
    runtime.set_turn_limit(200 * MIB)
    assert (one.page.control.turn_limit, two.page.control.turn_limit) == (150 * MIB, 50 * MIB)
    two.page.report.allocated = 300 * MIB
    harness.page_sync.write_pages(runtime)
    assert one.page.control.turn_limit == two.page.control.turn_limit == 100 * MIB
    runtime.set_turn_limit(None)
    assert one.page.control.turn_limit == two.page.control.turn_limit == 0
