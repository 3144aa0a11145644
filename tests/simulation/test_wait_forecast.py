"""Test of wait forecasts against the waits of simulated notebooks."""

from __future__ import annotations

from statistics import mean

import pytest

from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.views.wait_forecast import forecast_wait
from jupyter_gpushare.simulation.simulation import Simulation

from .workloads import some_notebooks

SAMPLE_SECONDS = 2.0  # between two forecasts of the same wait


class ForecastSimulation(Simulation):
    """Simulation with `forecasts`: pairs of an expected wait and the actual wait from the same moment, in seconds."""

    def __init__(self, *args: object) -> None:
        self.forecasts: list[tuple[float, float]] = []
        self._samples: dict[str, list[tuple[float, float]]] = {}  # by client: time, expected wait
        super().__init__(*args)  # type: ignore[arg-type]

    def handle_event(self, event: ev.Event) -> None:
        super().handle_event(event)
        if self._is_handling:
            return
        waiting = self.scheduler.turns.table.waiting
        for name in [name for name in self._samples if name not in waiting]:
            self.forecasts += [(expected, self.now - at) for at, expected in self._samples.pop(name)]
        for name, client in waiting.items():
            samples = self._samples.setdefault(name, [])
            if not samples or self.now - samples[-1][0] >= SAMPLE_SECONDS:
                expected = forecast_wait(self.scheduler, client, self.now)
                assert expected
                samples.append((self.now, expected.wait))


@pytest.mark.parametrize(("policy", "jobs"), [("interactive", 1), ("interactive", 2), ("fcfs", 1)])
def test_wait_forecast_matches_the_mean_wait(policy: str, jobs: int) -> None:
    simulation = ForecastSimulation(some_notebooks(12, hours=1.0, load=0.5, jobs=jobs), Settings(policy=policy))
    simulation.run(3600.0)
    forecasts = simulation.forecasts
    assert len(forecasts) > 300
    expected, actual = mean(expected for expected, _ in forecasts), mean(actual for _, actual in forecasts)
    assert actual / 5 < expected < actual * 2.5  # waits have a long tail, and later cells may run first
    soon = [actual for expected, actual in forecasts if expected < 1.0]
    later = [actual for expected, actual in forecasts if 5.0 <= expected < 20.0]
    assert mean(soon) < 2.5, "an expected wait below a second"
    assert 3.0 < mean(later) < 30.0
