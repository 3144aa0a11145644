"""Tests of offline clients beside online clients with bursts of work, under the shipped settings.

The requirement has two directions. The online clients lose at most 5 % of their throughput. The offline clients get at
least 80 % of the time that is left of the device.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workloads.workload import Cell, Participant, Workload

from .workloads import DEVICE, GB

MAX_LOSS = 0.05  # of the online clients' throughput without offline clients
MIN_PART = 0.8  # of the device's time that the online clients leave without offline clients
TOGETHER, MOVING = 20 * GB, 50 * GB  # memory of each client; the device has 80 GB
ENDLESS = 1e9  # seconds of GPU work


@dataclass(frozen=True)
class Outcome:
    """Loss of the online clients' throughput, and the offline clients' part of the time that is left."""

    loss: float
    part: float
    bytes_moved: int


def notebook(number: int, burst: float, pause: float, memory: int) -> Participant:
    """Return a client whose cells take all of the device for `burst` seconds."""
    cells = itertools.repeat(Cell(pause * (1 + 0.3 * number), (0.0, burst)))
    return Participant(f"online {number}", cells, memory, user=f"user {number}")


def offline_job(number: int, memory: int) -> Participant:
    quota = Quota().with_changes({"service": "offline"})
    return Participant(f"offline {number}", [Cell(0.0, (0.0, ENDLESS))], memory, kind="job", quota=quota)


def run(participants: list[Participant], mode: str, seconds: float) -> Simulation:
    workload = Workload("offline beside online", (DEVICE,), tuple(participants), overlap=mode == "swap")
    simulation = Simulation(workload, Settings())
    simulation.run(seconds)
    return simulation


def measure(online: int, offline: int, burst: float, pause: float, memory: int, mode: str = "unified") -> Outcome:
    seconds = max(900.0, 60 * burst)

    def throughput(*jobs: Participant) -> tuple[float, float, int]:
        notebooks = [notebook(number, burst, pause, memory) for number in range(online)]
        simulation = run([*notebooks, *jobs], mode, seconds)
        work = [client.gpu_seconds for client in simulation.all_clients]
        return sum(work[:online]), sum(work[online:]), simulation.bytes_out

    alone, _, _ = throughput()
    colocated, got, moved = throughput(*(offline_job(number, memory) for number in range(offline)))
    return Outcome(1.0 - colocated / alone, got / (seconds - alone), moved)


@pytest.mark.parametrize(("online", "offline"), [(1, 2), (2, 1)], ids=["1-online-2-offline", "2-online-1-offline"])
@pytest.mark.parametrize(("burst", "pause"), [(1.0, 3.0), (5.0, 15.0)])
def test_bursts_keep_their_throughput_and_leave_the_pauses(
    online: int, offline: int, burst: float, pause: float
) -> None:
    outcome = measure(online, offline, burst, pause, TOGETHER)
    assert outcome.bytes_moved == 0
    assert outcome.loss <= MAX_LOSS
    assert outcome.part >= MIN_PART


@pytest.mark.parametrize("burst", [1.0, 5.0, 30.0])
def test_one_notebook_that_works_half_of_the_time_leaves_the_other_half(burst: float) -> None:
    outcome = measure(1, 2, burst, burst, TOGETHER)
    assert outcome.loss <= MAX_LOSS
    assert outcome.part >= MIN_PART


@pytest.mark.parametrize("mode", ["unified", "swap"])
def test_long_bursts_pay_for_memory_that_moves(mode: str) -> None:
    outcome = measure(1, 2, 30.0, 30.0, MOVING, mode)
    assert outcome.bytes_moved > 0
    assert outcome.loss <= MAX_LOSS
    assert outcome.part >= MIN_PART
