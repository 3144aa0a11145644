"""Tests of simulated reports of progress: their number, and the report of a client at the arrival of another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.workloads.workload import Workload

from .workloads import CheckedSimulation, endless_participant, make_workload, simulate_shipped

HOUR = 3600.0


class ReportingSimulation(CheckedSimulation):
    """Simulation that records the times of all reports of progress, by client."""

    def __init__(self, workload: Workload, seconds: float) -> None:
        self.reports: dict[str, list[float]] = {}
        super().__init__(workload, Settings())
        self.run(seconds)

    def handle_event(self, event: ev.Event) -> None:
        if isinstance(event, ev.Progress):
            self.reports.setdefault(event.client, []).append(self.now)
        super().handle_event(event)


def test_a_client_alone_reports_seldom() -> None:
    alone = simulate_shipped(make_workload(endless_participant("job", 0.0, HOUR)), HOUR)
    assert alone.results.work == pytest.approx(HOUR)
    assert alone.results.events < HOUR / 5


def test_clients_on_one_device_report_each_second() -> None:
    jobs = [endless_participant("one", 0.0, HOUR), endless_participant("two", 0.0, HOUR)]
    assert simulate_shipped(make_workload(*jobs), 100.0).results.events > 100


@pytest.mark.parametrize(("phases", "arrives"), [((0.0, HOUR), 104.5), ((5.0, 5.0), 12.5)], ids=["on GPU", "on CPU"])
def test_a_client_in_a_turn_reports_at_the_arrival_of_another_one(phases: tuple[float, ...], arrives: float) -> None:
    light = replace(endless_participant("light", *phases), intensity=0.4)
    reports = ReportingSimulation(make_workload(light, replace(light, id="other", arrives=arrives)), 120.0).reports
    assert arrives in reports["light"]
