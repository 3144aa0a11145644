"""Tests of colocation by the memory that clients have between two samples of the coordinator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.core import Scheduler
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.wire.page import OUT

from ..hostile.in_process_coordinator import InProcessCoordinator, WellBehavedClient
from ..hostile.virtual_loop import VirtualLoop
from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import wait_until

MOST = 5 << 30  # of 8 GiB: two clients with so much memory do not fit together


def test_new_memory_of_a_running_client_counts_for_a_newcomer(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """The coordinator samples the memory once a second, and the newcomer comes sooner."""
    idle_coordinator.start(quantum=20, sharing="packed")
    a, b = processes("a"), processes("b")
    a.run_turn()
    a.allocate(MOST)
    b.allocate(MOST)
    b.start_waiting()
    wait_until(lambda: a.contended)
    assert b.phase == OUT
    assert idle_coordinator.grants() == ["a"]


class Holder(WellBehavedClient):
    """Process that has memory when it connects, as after a restart of the coordinator."""

    def hello(self, **changes: Any) -> dict[str, Any]:
        self.report.allocated = self.report.resident = MOST
        return super().hello(**changes)


def test_memory_of_a_process_counts_from_the_moment_it_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may be in a turn, and the scheduler decides at once which waiting clients fit beside it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    known: dict[str, int] = {}
    handle = Scheduler.handle

    def record(self: Scheduler, event: ev.Event, now: float) -> Any:
        if isinstance(event, ev.ProcessJoined):
            known[event.client] = self.clients[event.client].memory_use.allocated
        return handle(self, event, now)

    monkeypatch.setattr(Scheduler, "handle", record)
    in_process = InProcessCoordinator(VirtualLoop(), tmp_path)
    Holder(in_process, "a", "GPU-shared").close()
    in_process.close()
    assert known == {"a": MOST}
