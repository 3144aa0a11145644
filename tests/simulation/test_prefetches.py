"""Tests of memory that returns ahead of a turn, and of resident targets, which bound it.

The checks are those of CheckedSimulation.
"""

from __future__ import annotations

import itertools
from random import Random

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.workloads.workload import Cell, DeviceModel, Participant, Workload

from ..support import tier
from .workloads import DEVICE, GB, CheckedSimulation

ENDLESS = (0.0, 1e9)
STOPPED_PREFETCHES = (45, 77, 107)  # seeds with a prefetch that stops for want of room, after some of its memory


def job(name: str, memory: int, resident: int | None = None, arrives: float = 0.0) -> Participant:
    quota, cells = Quota(resident=resident), [Cell(0.0, ENDLESS)]
    return Participant(name, cells, memory, user=name, kind="job", quota=quota, arrives=arrives)


def run(*jobs: Participant, seconds: float = 60.0) -> CheckedSimulation:
    simulation = CheckedSimulation(Workload("test", (DEVICE,), jobs, overlap=True), Settings())
    simulation.run(seconds)
    return simulation


def test_memory_that_returns_ahead_of_a_turn_stays_within_the_resident_quota() -> None:
    """While other jobs wait, the next job has 20 GB on the device, although 30 GB are free."""
    simulation = run(job("next", 60 * GB, 20 * GB), job("small", 30 * GB), job("last", 70 * GB))
    assert all(client.gpu_seconds > 0 for client in simulation.all_clients)


def test_a_quota_holds_from_the_arrival_of_its_client_on() -> None:
    others = (job("first", 50 * GB), job("second", 50 * GB))
    simulation = run(*others, job("late", 60 * GB, 10 * GB, arrives=3.0))
    assert simulation.all_clients[2].gpu_seconds > 0


def random_workload(seed: int) -> tuple[Workload, Settings]:
    rng = Random(seed)
    devices = rng.randint(1, 2)
    participants = []
    for number in range(rng.randint(2, 5)):
        gpus = rng.randint(1, devices)
        memory = rng.randint(1, 8) * 10 * GB * gpus
        phases = (rng.choice([0.0, 0.3, 2.0]), rng.choice([0.1, 1.0, 5.0, 60.0]))
        is_job = rng.random() < 0.5
        cells = (
            [Cell(0.0, itertools.cycle(phases))] if is_job else itertools.repeat(Cell(rng.choice([0.1, 1, 5]), phases))
        )
        participants.append(
            Participant(
                f"client-{number}",
                cells,
                memory,
                user=f"user-{number % 3}",
                quota=Quota(
                    resident=rng.choice([None, 10 * GB, 20 * GB]), service=rng.choice(["online", "online", "offline"])
                ),
                gpus=gpus,
                arrives=rng.choice([0.0, 3.0]),
                restarts=rng.choice([(), (20.0,)]),
                kind="job" if is_job else "notebook",
                cache=rng.choice([0, memory // 2]),
            )
        )
    model = DeviceModel(80 * GB, rng.choice([5e9, 50e9]))
    settings = Settings(sharing=rng.choice(["auto", "exclusive"]), idle_evict=rng.choice([0.0, 5.0]))
    return Workload(f"random {seed}", (model,) * devices, tuple(participants), overlap=rng.random() < 0.5), settings


@pytest.mark.parametrize("seed", sorted({*range(tier.strength(10, 500)), *STOPPED_PREFETCHES}))
def test_reports_and_targets_hold_in_random_workloads(seed: int) -> None:
    CheckedSimulation(*random_workload(seed)).run(40.0)
