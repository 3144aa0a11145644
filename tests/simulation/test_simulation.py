"""Tests of simulations of small workloads: work, waits, times and figures."""

from __future__ import annotations

import pytest

from jupyter_gpushare.simulation.reports.results import Results
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workloads.workload import Cell, Participant

from .workloads import (
    DEVICE,
    GB,
    busy_participant,
    endless_participant,
    make_workload,
    simulate,
    some_notebooks,
    turn_settings,
)

NO_COSTS = {"handoff": 0.0, "drain": 0.0, "empty_drain": 0.0}


def figures(seed: int) -> dict[str, object]:
    workload = some_notebooks(seed=seed)
    return Simulation(workload, turn_settings()).run(7200).as_json()


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


@pytest.mark.parametrize(
    "how", [{}, {"jobs": 1}, {"restarts_per_day": 50.0}, {"overlap": True}, {"oversubscription": 0.8}], ids=str
)
@pytest.mark.parametrize("settings", [{}, {"policy": "interactive"}, {"policy": "fair", "sharing": "packed"}], ids=str)
def test_invariants_hold_at_every_event(how: dict[str, object], settings: dict[str, str]) -> None:
    """The invariants are those of `CheckedSimulation`."""
    simulation = simulate(some_notebooks(hours=0.5, **how), 1800, **settings)
    assert simulation.results.as_json()["cells"]["short"]["count"] > 20


def test_all_offered_work_is_done_without_contention() -> None:
    names = [f"n{number}" for number in range(4)]
    cells = [Cell(100.0, (1.0, 2.0, 1.0, 3.0, 1.0))] * 10
    simulation = simulate(make_workload(*(Participant(name, cells) for name in names)), 4000)
    assert simulation.results.work == pytest.approx(4 * 10 * 5.0)
    assert simulation.results.as_json()["cells"]["short"]["count"] == 40
    assert simulation.results.unfinished["short"] == 0


def test_single_client_never_waits() -> None:
    simulation = simulate(make_workload(busy_participant("one", 100.0)), 1000)
    assert simulation.all_clients[0].wait_seconds == pytest.approx(simulation.costs.handoff)
    assert simulation.switches == 1
    assert simulation.results.busy == pytest.approx(100.0)


def test_two_busy_clients_alternate_with_the_computed_cost_of_each_switch() -> None:
    """A change of turns takes 150 µs, and evicts 60 GB before it restores 60 GB at 50 GB/s. The quantum begins then."""
    one, other = busy_participant("one", 100.0, memory=60 * GB), busy_participant("other", 100.0, memory=60 * GB)
    simulation = simulate(make_workload(one, other), 1000, time_quantum=10.0)
    assert simulation.results.work == pytest.approx(200.0)
    # Each change of turns but the first evicts 40 GB, as much as the other client needs, and restores them later.
    turns, out = simulation.switches, simulation.bytes_out
    assert out == (turns - 1) * 40 * GB
    last = max(client.idle_since for client in simulation.all_clients)
    costs, linger = simulation.costs, simulation.scheduler.settings.cell_linger  # after the cell that ends first
    prefetched = 20 * GB  # restored during the first turn of the other client, because there was room
    moving = (simulation.bytes_in - prefetched + out) / DEVICE.link
    assert last == pytest.approx(200.0 + turns * costs.handoff + moving + linger, abs=0.002)


def test_swap_overlaps_eviction_with_restore() -> None:
    clients = busy_participant("one", 100.0, memory=60 * GB), busy_participant("other", 100.0, memory=60 * GB)
    workload = make_workload(*clients)
    serial = simulate(workload, 1000, time_quantum=10.0)
    both = simulate(type(workload)(**{**vars(workload), "overlap": True}), 1000, time_quantum=10.0)
    ends = [max(client.idle_since for client in run.all_clients) for run in (serial, both)]
    assert ends[0] - ends[1] == pytest.approx(serial.bytes_out / 50e9, rel=0.2)


def test_mean_wait_of_short_cells_matches_queueing_theory() -> None:
    """Random cells of 1 s without preemption are a queue M/D/1 with the mean wait of Pollaczek and Khinchine."""
    from random import Random

    load, count = 0.6, 500
    draw = Random(1)
    participants = []
    for number in range(count):
        # Each user runs cells at independent random times, which together are a Poisson stream.
        think = [draw.expovariate(load / count) for _ in range(20)]
        participants.append(Participant(f"n{number}", [Cell(time, (0.0, 1.0)) for time in think]))
    simulation = Simulation(
        make_workload(*participants, **NO_COSTS),
        turn_settings(time_quantum=30.0, cell_linger=0.0, idle_release=0.001),
    )
    waits = simulation.run(2000.0).waits["short"]
    assert len(waits) > 1000
    assert sum(waits) / len(waits) == pytest.approx(load / (2 * (1 - load)), rel=0.2)


def test_turn_shorter_than_the_restore_makes_progress() -> None:
    """The same holds if a restore takes longer than the quantum."""
    clients = (
        endless_participant("one", 0.0, 10.0, memory=70 * GB),
        endless_participant("other", 0.0, 10.0, memory=70 * GB),
    )
    simulation = simulate(make_workload(*clients), 2000, time_quantum=0.1)
    assert all(client.gpu_seconds > 0.1 for client in simulation.all_clients)


def test_exited_process_frees_device_and_memory() -> None:
    dying = Participant("one", (Cell(0.0, (0.0, 100.0)),), 60 * GB, restarts=(5.0,))
    simulation = simulate(
        make_workload(dying, busy_participant("other", 10.0, memory=60 * GB, arrives=1.0)), 20.0, time_quantum=30.0
    )
    other = simulation.all_clients[1]
    assert other.gpu_seconds == pytest.approx(10.0)
    assert other.wait_seconds == pytest.approx(5.0 - 1.0 + (60 - 20) / 50, abs=0.01)


def test_results_of_several_seeds_are_merged() -> None:
    one, other = (Simulation(some_notebooks(seed=seed), turn_settings()).run(7200) for seed in (1, 2))
    both = Results()
    both += one
    both += other
    assert both.as_json()["cells"]["short"]["count"] == sum(len(results.waits["short"]) for results in (one, other))
    assert both.as_json()["throughput"] == pytest.approx((one.work + other.work) / 14400, abs=1e-6)


def test_generator_gives_the_requested_load_and_memory() -> None:
    workload = some_notebooks(20, hours=24.0, load=0.3)
    assert sum(one.memory for one in workload.participants) == pytest.approx(2 * DEVICE.memory, rel=0.01)
    work = 0.0
    for one in workload.participants:
        simulation = Simulation(make_workload(one, **NO_COSTS), turn_settings())
        work += simulation.run(86400.0).work
    assert work / 86400 == pytest.approx(0.3, rel=0.02)
