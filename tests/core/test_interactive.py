"""`interactive`: short cells overtake long ones, tricks gain nothing, tenants are equal, and nobody waits for ever."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core import events as ev

from .world import FakeProcess, World, host_of

QUANTUM = 5.0
LEAST = 0.1  # min_quantum


@pytest.fixture
def world() -> World:
    return host_of("gpu", policy="interactive", time_quantum=QUANTUM, min_quantum=LEAST, cell_linger=0.0)


def test_a_short_cell_overtakes_long_ones(world: World) -> None:
    for name in "abc":
        world.start(name)
    short = world.start("short", busy=False)
    world.run(60)
    for _ in range(10):
        waited = world.scheduler.clients["short"].wait_seconds
        done: list[float] = []
        world.run_cell(short, 0.3, lambda done=done: done.append(world.now))  # type: ignore[misc]
        world.run_until(lambda done=done: bool(done))  # type: ignore[misc]
        assert world.scheduler.clients["short"].wait_seconds - waited <= LEAST + 1e-6
        world.run(3.3)


def test_a_cell_that_turns_out_long_gives_way_to_shorter_ones(world: World) -> None:
    world.start("long")
    world.run(20)
    world.start("newcomer")
    world.run(10)
    third = world.start("third", busy=False)
    world.want(third)
    assert world.run_until(lambda: world.running() == "third") <= LEAST


def test_splitting_work_into_many_cells_gains_nothing(world: World) -> None:
    world.start("whole")
    split = world.start("split", busy=False)

    def again() -> None:
        world.at(0.0, lambda: world.run_cell(split, 0.25, again))

    again()
    world.run(30)
    got = world.fractions(100)
    assert got["split"] <= 0.51
    assert got["whole"] >= 0.49


def test_pretending_to_begin_cells_gains_nothing(world: World) -> None:
    world.start("honest")
    world.start("pretender")

    def pretend(number: int) -> None:
        world.start_cell("pretender", str(number))
        if number:
            world.end_cell("pretender", str(number - 1))
        world.at(0.3, lambda: pretend(number + 1))

    pretend(0)
    assert world.fractions(300) == pytest.approx({"honest": 0.5, "pretender": 0.5}, abs=0.02)


def test_giving_turns_up_early_gains_nothing(world: World) -> None:
    world.start("patient")
    world.start("nervous")

    def release() -> None:
        if world.running() == "nervous":
            world.feed(ev.TurnReleased("nervous"))
        world.at(0.2, release)

    release()
    got = world.fractions(300)
    assert got["nervous"] <= 0.51


@pytest.mark.parametrize("many", [2, 5])
def test_tenants_are_equal_however_many_clients_they_have(world: World, many: int) -> None:
    world.start("alone", tenant="one")
    for number in range(many):
        world.start(f"c{number}", tenant="other")
    world.run(30)
    got = world.fractions(40 * QUANTUM)
    assert got.pop("alone") == pytest.approx(0.5, abs=0.03)
    assert list(got.values()) == pytest.approx([0.5 / many] * many, abs=0.03)


def test_old_usage_decays(world: World) -> None:
    """An hour of computing in the morning counts for nothing in the afternoon."""
    morning = world.start("morning")
    world.run(3600)
    morning.busy = False
    world.feed(ev.TurnReleased("morning"))
    world.unwant(morning)
    world.run(3 * 3600)
    world.start("long")
    world.run(60)
    world.want(morning)
    assert world.run_until(lambda: world.running() == "morning") <= LEAST


def test_wait_is_at_most_max_wait_and_one_turn_of_each_earlier_client() -> None:
    """Newcomers without any use before come all the time: without the bound the long client would never run again."""
    max_wait = 20.0
    world = host_of("gpu", policy="interactive", time_quantum=1.0, max_wait=max_wait)
    world.start("long")
    world.run(60)
    waits: list[float] = []
    for number in range(120):
        world.start(f"newcomer {number}")
        world.run(1.0)
        if number >= 4:
            gone = [p for p in world.processes.values() if p.client == f"newcomer {number - 4}"]
            world.kill(gone[0])
        long = world.scheduler.clients["long"]
        waits.append(long.wait_seconds_at(world.now) if long.waiting_since is None else world.now - long.waiting_since)
        if long.waiting_since is not None:
            assert world.now - long.waiting_since <= max_wait + 6 * 1.0
    assert max(waits) > max_wait / 2, "it did have to wait"
    assert world.scheduler.clients["long"].quanta > 3


def thinking(world: World, process: FakeProcess, length: float, pause: float) -> list[float]:
    """Run cells of `length` with pauses between them for ever; the list returned grows by the wait of each cell."""
    waits: list[float] = []

    def again() -> None:
        waited = world.scheduler.clients[process.client].wait_seconds

        def done() -> None:
            waits.append(world.scheduler.clients[process.client].wait_seconds - waited)
            world.at(pause, again)

        world.run_cell(process, length, done)

    again()
    return waits


@pytest.mark.parametrize("begins", [0.0, 0.5, 15.0], ids=lambda seconds: f"newcomer-{seconds:g}s-old")
def test_use_of_an_idle_device_is_free(world: World, begins: float) -> None:
    """A notebook works for 20 s while no other client wants the device: it does not wait for a newcomer afterwards."""
    notebook = world.start("notebook", busy=False)
    done: list[float] = []
    world.run_cell(notebook, 20.0, lambda: done.append(world.now))
    world.run_until(lambda: bool(done))
    world.start("newcomer")
    world.run(begins)
    waits = thinking(world, notebook, 0.02, 2.0)
    world.run(300)
    assert len(waits) > 100
    assert max(waits) <= LEAST + 1e-6


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("length", [0.1, 1.0])
def test_short_cells_beside_endless_jobs_start_at_once(world: World, jobs: int, length: float) -> None:
    for number in range(jobs):
        world.start(f"job {number}")
    world.run(30)
    waits = thinking(world, world.start("notebook", busy=False), length, 4.0)
    world.run(300)
    assert max(waits) <= LEAST * (1 + 2 * length) + 1e-6


def test_cells_that_use_less_than_their_part_do_not_wait_for_long_ones(world: World) -> None:
    """Cells of ten seconds, one after the other, are not short because they are many."""
    thinking(world, world.start("long cells", busy=False), 10.0, 0.1)
    world.run(30)
    waits = thinking(world, world.start("short cells", busy=False), 0.5, 2.0)
    world.run(300)
    assert sorted(waits)[len(waits) * 9 // 10] <= 0.6


@pytest.mark.parametrize(("many", "pause"), [(2, 0.3), (3, 0.5)])
def test_dividing_work_among_many_clients_gains_nothing(world: World, many: int, pause: float) -> None:
    world.start("loop", tenant="one")
    for number in range(many):
        thinking(world, world.start(f"cells {number}", tenant="other", busy=False), 0.25, pause)
    world.run(30)
    assert world.fractions(200)["loop"] >= 0.4


def test_one_client_after_the_other_gains_nothing(world: World) -> None:
    world.start("loop", tenant="one")
    numbers = iter(range(1000))

    def again() -> None:
        process = world.start(f"short-lived {next(numbers)}", tenant="other", busy=False)
        world.run_cell(process, 5.0, lambda: (world.kill(process), world.at(0.2, again)))  # type: ignore[func-returns-value]

    again()
    world.run(30)
    assert world.fractions(200)["loop"] >= 0.4


def test_what_a_tenant_uses_where_no_other_waits_does_not_count_elsewhere() -> None:
    world = host_of("one", "two", policy="interactive", time_quantum=QUANTUM)
    for name, tenant, device in (("elsewhere", "ada", "two"), ("here", "ada", "one"), ("other", "bob", "one")):
        world.client(name, tenant=tenant)
        world.process(name, device, busy=True)
    world.run(30)
    since = world.now
    world.run(200)
    held = world.held("one", since)
    assert held["here"] == pytest.approx(held["other"], rel=0.06)
