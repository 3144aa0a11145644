"""A new coordinator takes over from one that died: turns that outlived it, and those who wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.errors import IllegalEvent
from jupyter_gpushare.core.quota import Quota

from .conftest import QUANTUM
from .world import World


def test_a_running_turn_goes_on_under_a_new_epoch(world: World) -> None:
    a = world.adopt("a", "gpu", epoch=41)
    assert (world.phase("a"), a.gate, a.epoch) == ("running", "open", 42)


def test_it_ends_after_a_quantum_if_somebody_waits(world: World) -> None:
    world.adopt("a", "gpu", epoch=41)
    world.process("b", busy=True)
    assert world.run_until(lambda: world.running() == "b") == pytest.approx(QUANTUM)
    assert world.phase("a") == "idle"


def test_it_ends_with_a_cell_that_ended_before_anybody_was_there_to_hear(world: World) -> None:
    world.adopt("a", "gpu", epoch=41)
    world.end_cell("a", "of before")
    world.run(1.0)
    assert world.phase("a") == "idle"


def test_epochs_go_on_from_the_largest_seen(world: World) -> None:
    for name, epoch in (("a", 7), ("b", 900), ("c", 30)):
        world.adopt(name, "gpu", epoch=epoch, running=False)
    d = world.process("d", busy=True)
    assert d.epoch > 900


def test_who_did_not_run_waits_like_everybody(world: World) -> None:
    b = world.process("b", busy=True)
    a = world.adopt("a", "gpu", epoch=3, running=False)
    world.want(a)
    assert (b.gate, world.queue("gpu")) == ("open", ["a"])


def test_levels_are_written_anew(world: World) -> None:
    world.adopt("a", "gpu", epoch=3)
    assert cmd.Orders("a", False, None) in world.commands


def test_both_processes_of_a_running_client_come_back(world: World) -> None:
    first = world.adopt("a", "gpu", epoch=5)
    second = world.adopt("a", "gpu", epoch=5)
    assert (first.gate, second.gate) == ("open", "open")
    assert first.epoch == second.epoch
    world.process("b", busy=True)
    world.run_until(lambda: world.running() == "b")


def test_a_running_gang_comes_back_process_by_process(make_world: Callable[..., World]) -> None:
    world = make_world("d1", "d2")
    first = world.adopt("gang", "d1", epoch=5)
    second = world.adopt("gang", "d2", epoch=5)
    assert (first.gate, second.gate) == ("open", "open")
    world.process("b", "d2", busy=True)
    world.run_until(lambda: world.running("d2") == "b")
    assert "d1" not in world.locks, "the lock of every device was passed on"


def test_a_process_at_the_gate_runs_with_the_rest_that_was_running(world: World) -> None:
    """It said hello first, and wants; the coordinator learns only then that its client has the turn."""
    world.lock_elsewhere("gpu")
    waits = world.process("a", busy=True)
    world.unlock_elsewhere("gpu")  # it was the client's own lock
    world.adopt("a", "gpu", epoch=5)
    assert waits.gate == "open"


def test_it_adopts_only_what_is_locked(make_world: Callable[..., World]) -> None:
    """One process runs on d2, the other one waits for d1, which somebody else has."""
    world = make_world("d1", "d2")
    world.process("b", "d1", busy=True)
    waits = world.process("a", "d1", busy=True)
    runs = world.adopt("a", "d2", epoch=5)
    assert (runs.gate, waits.gate, world.running("d1")) != ("open", "open", "b")
    world.run_until(lambda: waits.gate == "open")
    assert runs.gate == "open"
    world.run(3 * QUANTUM)


def test_a_process_comes_back_while_its_client_drains(world: World) -> None:
    """Nobody else may run before it has drained too."""
    first = world.adopt("a", "gpu", epoch=5)
    first.drains_in = 0.05
    world.process("b", busy=True)
    world.run_until(lambda: world.phase("a") == "draining")
    second = world.adopt("a", "gpu", epoch=5)
    second.drains_in = 0.08
    world.at(0.08, lambda: world._drain(second, second.epoch))
    assert second.gate == "closing"
    world.run_until(lambda: world.running() == "b")
    assert second.gate == "closed"


def test_a_known_client_keeps_quota_and_devices(world: World) -> None:
    world.client("a", Quota(share=0.5))
    world.feed(ev.ClientRegistered("a", "1000", "new label", Quota(share=0.9)))
    client = world.scheduler.clients["a"]
    assert (client.quota.share, client.label) == (0.5, "new label")


def test_epochs_beyond_those_that_others_follow_are_known_and_never_given_again(world: World) -> None:
    """Somebody once claimed a very large one; then a coordinator died, and epochs go on from the middle."""
    half = 1 << 28
    a = world.adopt("a", "gpu", epoch=half + 3, running=False)
    b = world.adopt("b", "gpu", epoch=half + 5, running=False)
    world.client("c")
    world.feed(ev.ProcessJoined("c", 77, ("gpu",), epoch=half + 9, drained_epoch=half + 6))
    world.feed(ev.Drained(a.number, half + 3))
    for process in (a, b):
        process.busy = True
        world.want(process)
    world.run(8 * QUANTUM)
    granted = [command.epoch for command in world.commands if isinstance(command, cmd.Grant)]
    assert granted[-1] > half + 6
    assert not {half + 3, half + 5, half + 6} & set(granted)
    with pytest.raises(IllegalEvent):
        world.feed(ev.Drained(a.number, half + 1000))
