"""Processes whose doorbell was not heard: what their pages say of their turns."""

from __future__ import annotations

from jupyter_gpushare.wire.page import CLOSING, IN

from .conftest import Coordinator, Processes
from .fake_process import wait_for


def test_a_process_at_the_gate_whose_word_was_lost_gets_its_turn(
    coordinator: Coordinator, processes: Processes
) -> None:
    a = processes("a")
    a.loses_its_doorbell()
    a.run_turn()
    wait_for(lambda: (coordinator.client("a") or {})["phase"] == "running")


def test_the_end_of_a_turn_of_which_no_word_came_is_seen(coordinator: Coordinator, processes: Processes) -> None:
    a, b = processes("a"), processes("b")
    a.run_turn()
    a.loses_its_doorbell()
    b.wants()
    a.wait_phase(CLOSING)
    a.drain()
    b.wait_phase(IN)
    wait_for(lambda: (coordinator.client("a") or {})["phase"] == "idle")
