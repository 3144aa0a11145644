"""Whether people wait as long as they are told: waits of simulated notebooks against what was expected meanwhile."""

from __future__ import annotations

from statistics import mean

import pytest

from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.views.wait_forecast import forecast_wait
from jupyter_gpushare.simulation.simulation import Simulation

from .workloads import some_notebooks

SAMPLE_SECONDS = 2.0  # seconds between two looks at the same wait


class ForecastSimulation(Simulation):
    """`told`: pairs of what was expected at some moment of a wait, and what was still to come of it, in seconds."""

    def __init__(self, *args: object) -> None:
        self.forecasts: list[tuple[float, float]] = []
        self._samples: dict[str, list[tuple[float, float]]] = {}  # by client: when, and what was expected
        super().__init__(*args)  # type: ignore[arg-type]

    def handle_event(self, event: ev.Event) -> None:
        super().handle_event(event)
        if self._is_handling:
            return
        waiting = self.scheduler.turns.table.waiting
        for name in [name for name in self._samples if name not in waiting]:
            self.forecasts += [(expected, self.now - at) for at, expected in self._samples.pop(name)]
        for name, client in waiting.items():
            looks = self._samples.setdefault(name, [])
            if not looks or self.now - looks[-1][0] >= SAMPLE_SECONDS:
                expected = forecast_wait(self.scheduler, client, self.now)
                assert expected
                looks.append((self.now, expected.wait))


@pytest.mark.parametrize(("policy", "jobs"), [("interactive", 1), ("interactive", 2), ("fcfs", 1)])
def test_wait_forecast_matches_the_mean_wait(policy: str, jobs: int) -> None:
    simulation = ForecastSimulation(some_notebooks(12, hours=1.0, load=0.5, jobs=jobs), Settings(policy=policy))
    simulation.run(3600.0)
    told = simulation.forecasts
    assert len(told) > 300
    expected, came = mean(expected for expected, _ in told), mean(came for _, came in told)
    assert came / 5 < expected < came * 2.5  # waits have a long tail, and who will overtake is not known
    soon = [came for expected, came in told if expected < 1.0]
    later = [came for expected, came in told if 5.0 <= expected < 20.0]
    assert mean(soon) < 2.5, "who is told that it is about to come"
    assert 3.0 < mean(later) < 30.0
