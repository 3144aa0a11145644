"""A simulation does what its devices, links and programs would: nothing is lost, and times can be computed by hand."""

from __future__ import annotations

import pytest

from jupyter_gpushare.simulation.results import Results
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workload import Cell, Participant

from .worlds import DEVICE, GB, busy, endless, simulate, some_notebooks, turns, world

FREE = {"handover": 0.0, "drain": 0.0, "scan": 0.0}


def figures(seed: int) -> dict[str, object]:
    workload = some_notebooks(seed=seed)
    return Simulation(workload, turns()).run(7200).as_json()


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


@pytest.mark.parametrize(
    "how", [{}, {"jobs": 1}, {"deaths": 50.0}, {"overlap": True}, {"oversubscription": 0.8}], ids=str
)
@pytest.mark.parametrize("settings", [{}, {"policy": "interactive"}, {"policy": "fair", "sharing": "packed"}], ids=str)
def test_nothing_impossible_happens(how: dict[str, object], settings: dict[str, str]) -> None:
    """One holder at a time unless shared, nobody forgotten, and never more memory on the device than it has: checked at
    every event."""
    simulation = simulate(some_notebooks(hours=0.5, **how), 1800, **settings)
    assert simulation.results.as_json()["cells"]["short"]["count"] > 20


def test_all_work_offered_is_done_when_there_is_plenty_of_room() -> None:
    names = [f"n{number}" for number in range(4)]
    cells = [Cell(100.0, (1.0, 2.0, 1.0, 3.0, 1.0))] * 10
    simulation = simulate(world(*(Participant(name, cells) for name in names)), 4000)
    assert simulation.results.work == pytest.approx(4 * 10 * 5.0)
    assert simulation.results.as_json()["cells"]["short"]["count"] == 40
    assert simulation.results.unfinished["short"] == 0


def test_who_is_alone_never_waits() -> None:
    simulation = simulate(world(busy("one", 100.0)), 1000)
    assert simulation.everybody[0].waited == pytest.approx(simulation.costs.handover)
    assert simulation.switches == 1
    assert simulation.results.busy == pytest.approx(100.0)


def test_two_busy_clients_alternate_with_the_computed_cost_of_each_switch() -> None:
    """Each switch: 150 µs, and 60 GB out before 60 GB come in at 50 GB/s; the quantum counts after that."""
    one, other = busy("one", 100.0, memory=60 * GB), busy("other", 100.0, memory=60 * GB)
    simulation = simulate(world(one, other), 1000, time_quantum=10.0)
    assert simulation.results.work == pytest.approx(200.0)
    # 40 GB leave at each switch but the very first and come back later: only as much as the other one needs.
    turns, out = simulation.switches, simulation.bytes_out
    assert out == (turns - 1) * 40 * GB
    last = max(client.idle_since for client in simulation.everybody)
    costs, linger = simulation.costs, simulation.scheduler.settings.cell_linger  # of the cell that ends first
    ahead = 20 * GB  # came back while the other one ran at first: there was room
    moving = (simulation.bytes_in - ahead + out) / DEVICE.link
    assert last == pytest.approx(200.0 + turns * costs.handover + moving + linger, abs=0.002)


def test_swap_overlaps_what_leaves_with_what_comes() -> None:
    clients = busy("one", 100.0, memory=60 * GB), busy("other", 100.0, memory=60 * GB)
    workload = world(*clients)
    serial = simulate(workload, 1000, time_quantum=10.0)
    both = simulate(type(workload)(**{**vars(workload), "overlap": True}), 1000, time_quantum=10.0)
    ends = [max(client.idle_since for client in run.everybody) for run in (serial, both)]
    assert ends[0] - ends[1] == pytest.approx(serial.bytes_out / 50e9, rel=0.2)


def test_a_queue_of_short_cells_waits_as_long_as_theory_says() -> None:
    """Cells of 1 s that nobody preempts, from many users at random: M/D/1, Pollaczek and Khinchine's mean wait."""
    from random import Random

    load, seconds, count = 0.6, 200_000.0, 2000
    draw = Random(1)
    people = []
    for number in range(count):
        # Each user runs a cell now and then, whatever came before: together a Poisson stream.
        think = [draw.expovariate(load / count) for _ in range(int(2 * seconds * load / count) + 20)]
        people.append(Participant(f"n{number}", [Cell(time, (0.0, 1.0)) for time in think]))
    simulation = Simulation(
        world(*people[:0], *people, **FREE), turns(time_quantum=30.0, cell_linger=0.0, idle_release=0.001)
    )
    waits = simulation.run(2000.0).waits["short"]
    assert len(waits) > 1000
    assert sum(waits) / len(waits) == pytest.approx(load / (2 * (1 - load)), rel=0.2)


def test_a_short_turn_still_lets_work_go_on() -> None:
    """Also if bringing memory back takes longer than the quantum."""
    clients = endless("one", 0.0, 10.0, memory=70 * GB), endless("other", 0.0, 10.0, memory=70 * GB)
    simulation = simulate(world(*clients), 2000, time_quantum=0.1)
    assert all(client.done > 0.1 for client in simulation.everybody)


def test_a_process_that_dies_gives_everything_up() -> None:
    dying = Participant("one", (Cell(0.0, (0.0, 100.0)),), 60 * GB, dies=(5.0,))
    simulation = simulate(world(dying, busy("other", 10.0, memory=60 * GB, comes=1.0)), 20.0, time_quantum=30.0)
    other = simulation.everybody[1]
    assert other.done == pytest.approx(10.0)
    assert other.waited == pytest.approx(5.0 - 1.0 + (60 - 20) / 50, abs=0.01)


def test_results_of_several_seeds_are_put_together() -> None:
    one, other = (Simulation(some_notebooks(seed=seed), turns()).run(7200) for seed in (1, 2))
    both = Results()
    both += one
    both += other
    assert both.as_json()["cells"]["short"]["count"] == sum(len(results.waits["short"]) for results in (one, other))
    assert both.as_json()["throughput"] == pytest.approx((one.work + other.work) / 14400, abs=1e-6)


def test_the_generator_offers_the_load_and_the_memory_that_it_was_asked_for() -> None:
    workload = some_notebooks(20, hours=24.0, load=0.3)
    assert sum(one.memory for one in workload.participants) == pytest.approx(2 * DEVICE.memory, rel=0.01)
    alone = 0.0
    for one in workload.participants:
        simulation = Simulation(world(one, **FREE), turns())
        alone += simulation.run(86400.0).work
    assert alone / 86400 == pytest.approx(0.3, rel=0.02)
