"""Turns that change without the coordinator: the next client has its permit before the turn before ends."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from ..support.rule import CLOSING, IN, OUT
from .conftest import QUANTUM, Coordinator, Processes
from .fake_process import FakeProcess, wait_for

MAY = 1


@contextlib.contextmanager
def stopped(coordinator: Coordinator) -> Iterator[None]:
    os.kill(coordinator.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(coordinator.pid, signal.SIGCONT)


def is_next(process: FakeProcess) -> bool:
    return bool(process.permit.flags & MAY) and process.phase == OUT


@pytest.fixture
def pair(coordinator: Coordinator, processes: Processes) -> tuple[FakeProcess, FakeProcess]:
    """One that runs, one that has a permit to follow."""
    first, second = processes("first"), processes("second")
    first.run_turn()
    second.wants()
    wait_for(lambda: is_next(second))
    return first, second


def phases(coordinator: Coordinator, *names: str) -> list[str]:
    return [(coordinator.client(name) or {})["phase"] for name in names]


def test_a_turn_changes_while_the_coordinator_is_stopped(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    first, second = pair
    wait_for(lambda: first.permit.deadline_ns)
    with stopped(coordinator):
        first.wait_phase(CLOSING)
        first.drain()
        second.wait_phase(IN)
        first.wants()
    wait_for(lambda: phases(coordinator, "first", "second") == ["waiting", "running"])
    assert [(coordinator.client(name) or {})["quanta"] for name in ("first", "second")] == [1, 1]
    second.wait_phase(CLOSING, within=5 * QUANTUM + 1)  # a turn like any other
    second.drain()
    first.wait_phase(IN)


def test_a_whole_turn_that_the_coordinator_has_missed_is_counted(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    first, second = pair
    with stopped(coordinator):
        first.wait_phase(CLOSING)
        first.drain()
        second.wait_phase(IN)
        second.finish()
        second.close()
    wait_for(lambda: phases(coordinator, "first", "second") == ["idle", "idle"])


def test_the_next_one_gives_up(
    coordinator: Coordinator, processes: Processes, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    """Its permit is withdrawn, and the turn before goes on."""
    first, second = pair
    second.gives_up()
    wait_for(lambda: not is_next(second))
    first.finish()
    first.wants()
    wait_for(lambda: first.phase == IN)
    third = processes("third")
    third.wants()
    third.wait_phase(IN)
    assert second.phase == OUT
