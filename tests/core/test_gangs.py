"""Clients on several devices: all or none, without starvation and without idle devices kept from others for ever."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.quota import Quota

from .conftest import QUANTUM, MakeWorld
from .world import FakeProcess, World


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world("d1", "d2")


def test_a_gang_runs_on_all_its_devices_at_once(world: World) -> None:
    world.process("a", "d1", busy=True)
    world.process("b", "d2", busy=True)
    world.process("gang", "d1", "d2", busy=True)
    assert [world.running("d1"), world.running("d2")] == ["a", "b"]
    world.run_until(lambda: world.running("d1") == "gang")
    assert world.running("d2") == "gang"


def test_one_process_per_device_is_a_gang_too(world: World) -> None:
    first, second = world.process("gang", "d1"), world.process("gang", "d2")
    world.want(first, second)
    assert (first.gate, second.gate) == ("open", "open")
    assert set(first.entered) == set(second.entered) == {"d1", "d2"}, "each keeps the devices of the other"


def test_single_device_clients_do_not_starve_a_gang(world: World) -> None:
    for name in ("a1", "a2", "a3"):
        world.process(name, "d1", busy=True)
    for name in ("b1", "b2", "b3"):
        world.process(name, "d2", busy=True)
    world.process("gang", "d1", "d2", busy=True)
    assert world.run_until(lambda: world.running("d1") == "gang") <= 3 * QUANTUM + 1e-9
    world.run(30 * QUANTUM)
    for uuid in ("d1", "d2"):
        assert set(world.order(uuid)) >= {"gang"}
        assert len({c for c in world.order(uuid)[-8:]}) == 4


def test_device_is_free_for_later_clients_without_earlier_need(world: World) -> None:
    world.process("a", "d1", busy=True)
    world.process("b", "d1", busy=True)
    world.process("c", "d2", busy=True)
    assert world.running("d2") == "c"


def test_a_process_on_a_further_device_takes_that_into_the_turn(world: World) -> None:
    first = world.process("a", "d1", busy=True)
    second = world.process("a", "d2")
    assert (first.gate, second.gate) == ("open", "closed")
    world.want(second)
    world.run_until(lambda: second.gate == "open")
    assert first.gate == "open"
    assert world.scheduler.clients["a"].grant.devices == ("d1", "d2")  # type: ignore[union-attr]


def test_a_process_never_runs_on_a_device_that_its_turn_does_not_cover(world: World) -> None:
    """The world itself watches that no process runs without the locks of its devices."""
    world.process("b", "d2", busy=True)
    world.process("a", "d1", busy=True)
    late = world.process("a", "d2", busy=True)
    world.run(0.45)
    assert late.gate == "closed"
    assert world.run_until(lambda: late.gate == "open") == pytest.approx(QUANTUM - 0.45)


def half_a_collective_and_a_late_joiner(world: World) -> tuple[FakeProcess, FakeProcess]:
    """The first process's work on d1 waits for the second's on d2, which joins during the turn."""
    first = world.process("a", "d1", wants=True)
    late = world.process("a", "d2")
    first.peer, first.needs_opening = late, 1
    world.want(late)
    return first, late


def test_a_turn_that_cannot_end_is_extended_to_the_devices_that_its_other_half_needs(world: World) -> None:
    world.process("b", "d2", busy=True)
    first, late = half_a_collective_and_a_late_joiner(world)
    assert world.run_until(lambda: late.gate == "open") == pytest.approx(QUANTUM)
    assert (first.gate, world.phase("a"), world.queue("d2")) == ("open", "running", ["b"])
    assert world.run_until(lambda: world.running("d2") == "b") == pytest.approx(QUANTUM)
    assert world.phase("a") == "idle"
    assert world.scheduler.clients["a"].gpu_seconds == pytest.approx(2 * QUANTUM)


def test_an_extended_turn_keeps_its_number(world: World) -> None:
    b = world.process("b", "d2", busy=True)
    half_a_collective_and_a_late_joiner(world)
    world.run(0.5)
    turn = world.permits["a"].turn
    world.kill(b)
    permit = world.permits["a"]
    assert (permit.turn, permit.devices, permit.contended, permit.deadline) == (turn, ("d1", "d2"), False, None)


def test_an_extension_waits_its_turn_in_the_queue(world: World) -> None:
    world.process("b", "d2", busy=True)
    world.process("c", "d2", busy=True)
    _, late = half_a_collective_and_a_late_joiner(world)
    world.process("e", "d2", busy=True)
    assert world.run_until(lambda: late.gate == "open") == pytest.approx(2 * QUANTUM)
    assert world.queue("d2") == ["e", "b", "c"]


def test_an_extension_to_a_device_that_is_held_elsewhere_leaves_the_turn_as_it_was(world: World) -> None:
    world.lock_elsewhere("d2")
    first, late = half_a_collective_and_a_late_joiner(world)
    world.run(3)
    assert (first.gate, late.gate, list(world.holders("d1"))) == ("open", "closed", ["a"])
    world.unlock_elsewhere("d2")
    assert world.run_until(lambda: late.gate == "open") <= 0.16
    client = world.scheduler.clients["a"]
    assert client.gpu_seconds_at(world.now) == pytest.approx(world.now)
    assert client.quanta == 1


def test_an_extension_is_not_needed_any_more_when_the_thread_gives_up(world: World) -> None:
    world.process("b", "d2", busy=True)
    _, late = half_a_collective_and_a_late_joiner(world)
    world.run(0.5)
    assert world.queue("d2") == ["a"]
    world.unwant(late)
    assert world.queue("d2") == []
    assert world.permits["a"].devices == ("d1",)
    world.kill(late)
    world.run(5 * QUANTUM)
    assert world.running("d2") == "b"


def test_a_device_that_no_process_uses_any_more_is_no_longer_needed(world: World) -> None:
    keep = world.process("a", "d1")
    child = world.process("a", "d2")
    world.process("b", "d2", busy=True)
    world.kill(child)
    world.want(keep)
    assert world.running("d1") == "a", "it needs d1 only"


def test_unused_device_is_dropped_while_the_client_waits(world: World) -> None:
    world.process("b", "d2", busy=True)
    child, keep = world.process("a", "d2"), world.process("a", "d1", busy=True)
    assert keep.gate == "closed"
    world.kill(child)
    world.run_until(lambda: keep.gate == "open", within=0.02)


def test_the_only_process_that_runs_ends_while_another_waits_for_more_devices(world: World) -> None:
    first = world.process("a", "d1", busy=True)
    world.process("a", "d2")
    world.process("b", "d1", busy=True)
    world.kill(first)
    assert world.running("d1") == "b"


@pytest.mark.parametrize("why", ["a better class runs there", "somebody else has its lock"])
def test_a_free_device_is_lent_while_the_gang_that_is_next_cannot_have_the_other(world: World, why: str) -> None:
    if why == "a better class runs there":
        world.process("online", "d2", busy=True)
    else:
        world.lock_elsewhere("d2")
    service = Quota(service="offline")
    world.client("gang", service, gpus=2)
    gang = world.process("gang", "d1", "d2", busy=True)
    world.client("single", service)
    single = world.process("single", "d1", busy=True)
    world.run(5.0)
    assert single.openings and not gang.openings
    if why != "a better class runs there":
        world.unlock_elsewhere("d2")
        world.run_until(lambda: bool(gang.openings), within=2 * world.settings.time_quantum + 1)
