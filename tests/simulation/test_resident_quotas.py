"""Tests of the quota `resident` in a client's own turn, under the shipped settings."""

from __future__ import annotations

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workloads.workload import Cell, Participant, Workload

from .workloads import DEVICE, GB, CheckedSimulation

SECONDS = 600.0


def seconds_worked(resident: int | None) -> list[float]:
    """Return the seconds of work of two jobs that use half of the device and do not fit together, 50 of 80 GB each.

    The first job has the quota.
    """
    simulation = Simulation(two_jobs(resident), Settings())
    simulation.run(SECONDS)
    return [client.gpu_seconds for client in simulation.all_clients]


def two_jobs(resident: int | None) -> Workload:
    jobs = [
        Participant(name, [Cell(0.0, (0.0, 1e9))], 50 * GB, user=name, kind="job", intensity=0.5, quota=quota)
        for name, quota in (("first", Quota(resident=resident)), ("second", Quota()))
    ]
    return Workload("two jobs", (DEVICE,), tuple(jobs))


def test_a_job_runs_beside_one_that_keeps_a_part_of_its_memory_off_the_device() -> None:
    """The work of the first job reaches half of its memory over the link, and so is slower than alone."""
    in_turns, together = seconds_worked(None), seconds_worked(25 * GB)
    assert sum(in_turns) <= SECONDS
    assert together[0] >= 0.95 * in_turns[0]
    assert together[1] >= 0.95 * SECONDS


def test_the_quota_changes_while_the_jobs_work() -> None:
    """The jobs run together while the quota leaves room for both, and take turns otherwise."""
    simulation = CheckedSimulation(two_jobs(None), Settings())
    second = simulation.all_clients[1]
    for number, resident in enumerate((None, 25 * GB, 40 * GB, None, 25 * GB), 1):
        simulation.run_until(200.0 * number - 199.0)
        simulation.handle_event(ev.QuotaChanged("first", Quota(resident=resident)))
        simulation.run_until(200.0 * number - 150.0)
        before = second.gpu_seconds
        simulation.run_until(200.0 * number)
        assert simulation.all_clients[0].resident <= (resident or 50 * GB)
        worked = second.gpu_seconds - before
        assert worked >= 145.0 if resident == 25 * GB else worked <= 100.0
