"""A new coordinator takes over from one that died: turns that outlived it, and clients that wait."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.quota import Quota

from .conftest import QUANTUM, MakeWorld
from .world import CLOSED, CLOSING, OPEN, World

TURN = (1 << 40) + 5  # of an earlier coordinator


def test_a_running_turn_goes_on_with_its_number(world: World) -> None:
    a = world.adopt("a", "gpu", turn=TURN)
    assert (world.phase("a"), a.gate, a.turn, a.openings) == ("running", OPEN, TURN, 0)
    assert (world.permits["a"].turn, world.permits["a"].contended, world.permits["a"].deadline) == (TURN, False, None)


def test_adopted_turn_ends_after_a_quantum_if_a_client_waits(world: World) -> None:
    world.adopt("a", "gpu", turn=TURN)
    world.process("b", busy=True)
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(QUANTUM)
    assert world.phase("a") == "idle"


def test_adopted_turn_ends_with_a_cell_that_ended_meanwhile(world: World) -> None:
    world.adopt("a", "gpu", turn=TURN)
    world.end_cell("a", "of before")
    world.run(1.0)
    assert world.phase("a") == "idle"


def test_both_processes_of_a_running_client_come_back(world: World) -> None:
    first = world.adopt("a", "gpu", turn=TURN)
    second = world.adopt("a", "gpu", turn=TURN)
    assert (first.gate, second.gate) == (OPEN, OPEN)
    world.process("b", busy=True)
    world.run_until(lambda: world.running() == "b")


def test_a_running_gang_comes_back_process_by_process(make_world: MakeWorld) -> None:
    world = make_world("d1", "d2")
    first = world.adopt("gang", "d1", turn=TURN)
    second = world.adopt("gang", "d2", turn=TURN)
    assert (first.gate, second.gate) == (OPEN, OPEN)
    world.process("b", "d2", busy=True)
    world.run_until(lambda: world.running("d2") == "b")
    assert not world.holders("d1")


def test_a_process_at_the_gate_runs_with_the_rest_that_was_running(world: World) -> None:
    """It said hello first, and wants; the coordinator learns only then that its client has the turn."""
    world.lock_elsewhere("gpu")
    waits = world.process("a", busy=True)
    world.unlock_elsewhere("gpu", ring=False)  # it was the client's own lock
    world.adopt("a", "gpu", turn=TURN)
    world.run_until(lambda: waits.gate == OPEN, within=0.05)


def test_clients_that_ran_together_go_on_together(make_world: MakeWorld) -> None:
    world = make_world(sharing="packed")
    a, b = world.adopt("a", "gpu", turn=TURN), world.adopt("b", "gpu", turn=TURN)
    assert (a.gate, b.gate) == (OPEN, OPEN)


def test_a_turn_covers_only_the_devices_of_the_processes_that_are_in_it(make_world: MakeWorld) -> None:
    """One process runs on d2, the other one waits for d1, which another client has."""
    world = make_world("d1", "d2")
    world.process("b", "d1", busy=True)
    waits = world.process("a", "d1", busy=True)
    runs = world.adopt("a", "d2", turn=TURN)
    assert (runs.gate, waits.gate, world.running("d1")) == (OPEN, CLOSED, "b")
    world.run_until(lambda: waits.gate == OPEN)
    assert runs.gate == OPEN
    world.run(3 * QUANTUM)


def test_a_process_comes_back_while_its_client_drains(world: World) -> None:
    """No other client runs before it has drained too."""
    first = world.adopt("a", "gpu", turn=TURN)
    first.drains_in = 0.05
    world.process("b", busy=True)
    world.run_until(lambda: world.phase("a") == "draining")
    second = world.adopt("a", "gpu", turn=TURN, drains_in=0.08)
    assert second.gate == CLOSING
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(0.08, abs=0.002)
    assert second.gate == CLOSED


@pytest.mark.parametrize("phase", [CLOSING, "leaving"])
def test_a_turn_that_was_ending_ends(world: World, phase: str) -> None:
    world.process("b")
    a = world.adopt("a", "gpu", turn=TURN, phase=phase)
    world.want(next(process for process in world.processes.values() if process.client == "b"))
    world.run_until(lambda: world.running() == "b", within=0.1)
    assert a.gate == CLOSED


def test_registered_client_keeps_quota_and_devices(world: World) -> None:
    world.client("a", Quota(share=0.5))
    world.feed(ev.ClientRegistered("a", "1000", "new label", Quota(share=0.9)))
    client = world.scheduler.clients["a"]
    assert (client.quota.share, client.label) == (0.5, "new label")
