"""Tests of short cells beside long work under the shipped settings, with memory that must move at each switch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from random import Random

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.reports.results import quantile
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workloads.workload import Cell, Participant

from .workloads import DEVICE, GB, make_workload

MEMORY = 50 * GB  # of each client; the device has 80 GB
SWITCH_SECONDS = 2 * (2 * MEMORY - DEVICE.memory) / DEVICE.link  # 20 GB leave, and then 20 GB return
ENDLESS = 1e9  # seconds of GPU work


def endless_job(name: str, user: str, arrives: float = 0.0, share: float = 0.0) -> Participant:
    cells = [Cell(0.0, (0.0, ENDLESS))]
    return Participant(name, cells, MEMORY, user=user, quota=Quota(share=share), arrives=arrives, kind="job")


def run(seconds: float, *participants: Participant) -> Simulation:
    simulation = Simulation(make_workload(*participants), Settings())
    simulation.run(seconds)
    return simulation


def waits_of(cells: Iterable[Cell], seconds: float, *others: Participant) -> list[float]:
    """Return the waits of the notebook's short cells, in order of their length."""
    simulation = run(seconds, Participant("notebook", cells, MEMORY, user="ada"), *others)
    return sorted(simulation.results.waits["short"])


@pytest.mark.parametrize("length", [0.02, 0.3, 1.0])
def test_short_cells_after_long_work_on_an_idle_device_do_not_wait_for_a_newcomer(length: float) -> None:
    cells = [Cell(0.0, (0.0, 20.0)), *(Cell(5.0, (0.0, length)) for _ in range(50))]
    waits = waits_of(cells, 900.0, endless_job("newcomer", "bob", arrives=21.0))
    assert len(waits) == 50
    assert waits[-1] <= 1.0 + SWITCH_SECONDS


@pytest.mark.parametrize(("jobs", "most"), [(1, 1.0 + 2 * SWITCH_SECONDS), (3, 3.2)])
def test_cells_that_use_less_than_their_part_do_not_wait_for_endless_jobs(jobs: int, most: float) -> None:
    """The notebook uses half of its part of the device.

    Beside three jobs the aim of 1 s and two switches is missed (figures.md, "Short cells beside endless jobs").
    """
    think = 0.55 * (2 * (1 + jobs) - 1)
    waits: list[float] = []
    for seed in (1, 2, 3, 4):
        draw = Random(seed)
        lengths = [draw.uniform(0.1, 1.0) for _ in range(200)]
        cells = [Cell(draw.uniform(0.5, 1.5) * think, (0.0, length)) for length in lengths]
        waits += waits_of(cells, 2400.0, *(endless_job(f"job {number}", f"user {number}") for number in range(jobs)))
    assert len(waits) == 800
    p99 = quantile(sorted(waits), 0.99)
    assert p99 is not None and p99 <= most


def test_cutting_endless_work_into_short_cells_gains_nothing() -> None:
    cells = itertools.repeat(Cell(0.0, (0.0, 0.05)))
    simulation = run(300.0, Participant("cut", cells, MEMORY, user="ada"), endless_job("whole", "bob"))
    cut, whole = (client.gpu_seconds for client in simulation.all_clients)
    assert cut <= 1.1 * (cut + whole) / 2


def work_beside_cells(think: float, name: str) -> tuple[float, float]:
    """Return the GPU seconds of a client whose fourth cells are long, and of a client with cells of 4 s.

    The cells with a `name` are runs of one cell, so that each long run is expected to be short.
    """
    lengths = itertools.cycle((0.1, 0.1, 0.1, 20.0))
    cells = (Cell(think, (0.0, length), name=name) for length in lengths)
    honest = Participant("honest", itertools.repeat(Cell(5.0, (0.0, 4.0))), MEMORY, user="bob")
    simulation = run(1800.0, Participant("liar", cells, MEMORY, user="ada"), honest)
    first, second = (client.gpu_seconds for client in simulation.all_clients)
    return first, second


@pytest.mark.parametrize("think", [0.0, 5.0])
def test_false_expectations_gain_nothing(think: float) -> None:
    liar, honest = work_beside_cells(think, "cell")
    unknown, beside_unknown = work_beside_cells(think, "")
    assert liar <= 1.01 * unknown
    assert honest >= 0.99 * beside_unknown


def test_five_notebooks_of_one_user_get_as_much_as_one_of_another() -> None:
    many = (endless_job(f"one of five {number}", "ada") for number in range(5))
    simulation = run(1800.0, endless_job("single", "bob"), *many)
    single, *others = (client.gpu_seconds for client in simulation.all_clients)
    assert single / (single + sum(others)) == pytest.approx(0.5, abs=0.03)


def parts_and_waits(seconds: float, shares: tuple[float, float]) -> tuple[list[float], list[float]]:
    """Return the parts of the time of two endless jobs with shares, and the waits of short cells of a third client."""
    jobs = [endless_job(f"job {share}", f"user of {share}", share=share) for share in shares]
    cells = itertools.repeat(Cell(20.0, (0.0, 0.3)))
    simulation = run(seconds, *jobs, Participant("notebook", cells, MEMORY, user="cyd"))
    parts = [client.gpu_seconds / seconds for client in simulation.all_clients[:2]]
    return parts, list(simulation.results.waits["short"])


def test_shares_are_kept_while_short_cells_of_another_client_go_first() -> None:
    parts, waits = parts_and_waits(300.0, (0.6, 0.15))
    assert parts[0] >= 0.6 and parts[1] >= 0.15
    assert len(waits) >= 13
    assert max(waits) <= 1.0 + 2 * SWITCH_SECONDS


def test_shares_of_the_whole_device_are_kept_and_another_client_waits_for_max_wait() -> None:
    parts, _ = parts_and_waits(300.0, (0.8, 0.2))
    assert parts[0] / sum(parts) == pytest.approx(0.8, abs=0.02)
    parts, waits = parts_and_waits(900.0, (0.8, 0.2))
    assert parts[0] / sum(parts) == pytest.approx(0.8, abs=0.02)
    assert len(waits) >= 2
    assert max(waits) <= Settings().max_wait + 30.0, "and a turn of each of the others"


def test_a_share_that_the_device_has_not_left_is_refused_and_changes_nothing() -> None:
    alone = run(60.0, endless_job("first", "ada", share=0.8))
    beside = run(60.0, endless_job("first", "ada", share=0.8), endless_job("second", "bob", share=0.3))
    assert (alone.results.refused, beside.results.refused) == (0, 1)
    worked, refused = (client.gpu_seconds for client in beside.all_clients)
    assert (worked, refused) == (alone.all_clients[0].gpu_seconds, 0.0)
