"""Tests of the time under each limit, by client and reason, in the figures of a simulation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.simulation.workloads.workload import Cell, Participant, Workload

from .workloads import DEVICE, GB, make_workload, simulate_shipped

SECONDS = 100.0
Seconds = dict[str, dict[str, float]]


def job(name: str, *phases: float, memory: int = 0, **fields: Any) -> Participant:
    phases = phases or (0.0, 1e9)
    cells: Iterator[Cell] = iter([Cell(0.0, itertools.cycle(phases))])
    return Participant(name, cells, memory, user=name, kind="job", **fields)


def limited(*participants: Participant, seconds: float = SECONDS, **settings: Any) -> Seconds:
    figures: Seconds = simulate_shipped(make_workload(*participants), seconds, **settings).results.as_json()["limited"]
    return figures


def test_a_job_alone_is_not_limited() -> None:
    assert limited(job("a")) == {}


def test_a_job_with_a_time_limit_waits_for_the_rest_of_the_time() -> None:
    """After the tokens of the bucket the job works for a quarter of the time, and the rest has the reason."""
    simulation = simulate_shipped(make_workload(job("a", quota=Quota(limit=0.25))), SECONDS)
    worked = simulation.all_clients[0].gpu_seconds
    assert worked < SECONDS / 2
    found = simulation.results.as_json()["limited"]
    assert found == {"a": {"time_limit": pytest.approx(SECONDS - worked, abs=0.5)}}


def test_jobs_that_take_turns_are_limited_only_while_they_work_beside_a_waiting_one() -> None:
    found = limited(job("a", memory=50 * GB), job("b", memory=50 * GB), sharing="exclusive")
    assert found.keys() == {"a", "b"}
    assert all(reasons.keys() == {"others_wait"} for reasons in found.values())
    assert 0.8 * SECONDS < sum(reasons["others_wait"] for reasons in found.values()) <= SECONDS


def test_an_offline_job_beside_an_online_one_has_the_adaptive_rule_as_the_reason() -> None:
    found = limited(job("online", 1.0, 1.0), job("offline", quota=Quota(service="offline")))
    assert found["offline"]["measuring"] > 0
    assert found["offline"]["adaptive"] > SECONDS / 4
    assert "adaptive" not in found.get("online", {})


def test_an_offline_job_that_would_cost_an_online_one_too_much_has_the_reason() -> None:
    offline = job("offline", memory=50 * GB, quota=Quota(service="offline"))
    workload = Workload("test", (DEVICE,), (job("online", 1.0, 1.0, memory=50 * GB), offline), overlap=True)
    found = simulate_shipped(workload, SECONDS).results.as_json()["limited"]
    assert found["offline"]["takeover"] > SECONDS / 2
    assert "takeover" not in found.get("online", {})


def test_an_offline_job_that_runs_spilled_has_the_reason() -> None:
    offline = job("offline", memory=50 * GB, quota=Quota(service="offline"))
    found = limited(job("online", 0.4, 0.6, memory=50 * GB), offline)
    assert found["offline"]["spilled"] > 0
    assert "spilled" not in found.get("online", {})


def test_a_job_above_its_resident_quota_has_the_reason_all_the_time() -> None:
    assert limited(job("a", memory=50 * GB, quota=Quota(resident=20 * GB))) == {
        "a": {"resident": pytest.approx(SECONDS, abs=2.0)}
    }


def test_jobs_that_do_less_together_than_in_turns_have_the_packing_as_the_reason() -> None:
    """Each job leaves a part of its turns, so the packing is tried. The packing fails because much work is lost."""
    jobs = [job(name, 0.2, 0.3) for name in "ab"]
    found = simulate_shipped(make_workload(*jobs, interference=0.6), 300.0).results.as_json()["limited"]
    assert sum(reasons.get("packing", 0.0) for reasons in found.values()) > 0


def test_a_suspended_job_has_the_reason_while_it_waits() -> None:
    simulation = simulate_shipped(make_workload(job("a")), 10.0)
    simulation.handle_event(ev.SuspendRequested("a"))
    simulation.run_until(30.0)
    simulation.handle_event(ev.ResumeRequested("a"))
    simulation.run_until(40.0)
    assert simulation.results.as_json()["limited"] == {"a": {"suspended": pytest.approx(20.0, abs=0.1)}}
