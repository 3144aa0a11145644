"""Tests of simulated reports of progress: their number, and the service of clients that come to a client at work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpushare.simulation import execution

from .workloads import endless_participant, make_workload, simulate_shipped

HOUR = 3600.0


def test_a_client_alone_reports_seldom() -> None:
    alone = simulate_shipped(make_workload(endless_participant("job", 0.0, HOUR)), HOUR)
    assert alone.results.work == pytest.approx(HOUR)
    assert alone.results.events < HOUR / 5


def test_clients_on_one_device_report_each_second() -> None:
    jobs = [endless_participant("one", 0.0, HOUR), endless_participant("two", 0.0, HOUR)]
    assert simulate_shipped(make_workload(*jobs), 100.0).results.events > 100


@pytest.mark.parametrize("arrives", [100.0, 104.5, 109.0])
def test_a_second_client_is_served_as_with_a_report_each_second(
    monkeypatch: pytest.MonkeyPatch, arrives: float
) -> None:
    light = replace(endless_participant("light", 0.0, 60.0), intensity=0.4)
    workload = make_workload(light, replace(light, id="other", arrives=arrives))
    found = [one.gpu_seconds for one in simulate_shipped(workload, arrives + 120.0).all_clients]
    monkeypatch.setattr(execution, "_SAMPLE_SECONDS_ALONE", 1.0)
    assert found == pytest.approx(
        [one.gpu_seconds for one in simulate_shipped(workload, arrives + 120.0).all_clients], rel=0.02
    )
