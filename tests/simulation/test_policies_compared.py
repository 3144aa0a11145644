"""Tests of the shipped policy against `fcfs`, and against the yardstick, on the generated notebooks.

Short runs of the comparisons in docs/explanation/figures.md, which has the aims.
"""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.simulation.experiment import parse_variant, run

from .workloads import some_notebooks

FCFS = "fcfs:time_quantum=30,idle_release=0.25,sharing=exclusive"


@pytest.mark.parametrize(("jobs", "hours", "largest_ratio"), [(0, 1.0, 1.1), (1, 0.5, 1.2)], ids=["notebooks", "job"])
def test_short_cells_hardly_wait_and_as_much_work_is_done(jobs: int, hours: float, largest_ratio: float) -> None:
    """The `fcfs` of the comparison releases the device when a cell ends."""
    workload = some_notebooks(20, hours=hours, seed=2, load=0.8, jobs=jobs)

    def figures_of(policy: str) -> dict[str, Any]:
        return run(workload, parse_variant(policy), hours * 3600.0).as_json()

    shipped, fcfs, yardstick = (figures_of(policy) for policy in ("interactive", FCFS, "clairvoyant"))
    assert fcfs["cells"]["short"]["wait_p95"] >= 20 * shipped["cells"]["short"]["wait_p95"]
    assert shipped["throughput"] >= 0.99 * fcfs["throughput"]
    assert shipped["mean_bounded_slowdown"] <= largest_ratio * yardstick["mean_bounded_slowdown"]
