"""Test of self-tuning against every fixed setting, on generated notebooks with a job."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.turns.self_tuning import SETTINGS
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workloads.workload import DeviceModel

from .workloads import GB, some_notebooks

SLOW = DeviceModel(80 * GB, 20e9)  # a slow link makes changes of turns expensive, so that the settings matter
HOURS = 1.0


def waiting(**settings: Any) -> float:
    """Return the seconds of waiting at the gate for each second of work."""
    workload = some_notebooks(6, hours=HOURS, seed=2, load=0.5, jobs=1, devices=(SLOW,))
    simulation = Simulation(workload, Settings(sharing="exclusive", **settings))
    results = simulation.run(HOURS * 3600)
    return simulation.scheduler.turns.table.waited_seconds / results.work


@pytest.mark.nightly
def test_tuning_is_within_five_percent_of_the_best_fixed_setting() -> None:
    fixed = [waiting(switch_overhead=one.switch_overhead, idle_factor=one.idle_factor) for one in SETTINGS]
    assert waiting(tuning=True) <= 1.05 * min(fixed)
