"""Comparison of the results of other projects' own tests without the shim and under it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..driver_facts.harness import simulated_driver
from ..support.polling import WAIT_SECONDS, wait_until
from ..system.system_host import GpuProgram
from . import conftest, suites
from .comparison import (
    MAX_RERUN,
    RERUN_SECONDS,
    TEST_SECONDS,
    Outcomes,
    differences,
    longest_pause,
    run_tests,
    settle,
    write_outcomes,
)
from .conftest import MIB, MODES, PROGRAMS, FrameworkHost

RIVAL_BYTES = 500 * MIB  # of a device of 1 GiB
RIVAL_PAUSE_SECONDS = 30.0  # bound of the time between two launches of a rival, whose turns last a second
MIN_RIVAL_LAUNCHES = 100  # beside a suite; a turn has several hundred
QUOTA = "memory=512MiB"


@dataclass(frozen=True)
class Company:
    """Conditions of a run: a memory mode, or none without the shim, a rival that keeps taking turns, and a quota."""

    mode: str = ""
    rival: bool = False
    quota: str = ""

    @property
    def name(self) -> str:
        return "-".join([self.mode or "bare", *["rival"] * self.rival, *["quota"] * bool(self.quota)])


ALONE = [Company(mode) for mode in MODES[1:]]
CONTENDED = [Company(mode, *how) for how in ((True, ""), (False, QUOTA)) for mode in ("unified", "swap")]


def companies(name: str) -> list[Company]:
    return [*ALONE, *(CONTENDED if suites.SUITES[name].runs_contended else [])]


@pytest.fixture(autouse=True)
def frameworks() -> None:
    """Replace the fixture that requires PyTorch, which one suite needs."""


def run_suite(host: FrameworkHost, name: str, company: Company, only: Sequence[str] = ()) -> Outcomes:
    """Run a suite, or some of its tests with a longer limit. The report stays in the folder of the suite."""
    suite = suites.SUITES[name]
    driver, libraries = simulated_driver().parent, suites.library_path(name)
    more = {"PYTHONPATH": str(PROGRAMS), **suites.variables(name, host.folder / "cache", driver)}
    if company.mode:
        more |= {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}
        env = host.client_environment(name, company.quota, GPUSHARE_MEMORY_MODE=company.mode, **more)
    else:
        env = host.environment(LD_LIBRARY_PATH=":".join([*libraries, str(driver)]), **more)
    limit = RERUN_SECONDS if only else TEST_SECONDS
    rival = host.rival(company.mode, RIVAL_BYTES) if company.rival else None
    begin = time.monotonic_ns()
    outcomes = run_tests(
        [suites.python(name), "-m", "pytest", *suites.arguments(name)],
        env,
        suites.source(name) / suite.folder if suite.repository else host.folder,
        suites.FOLDER / name / f"{company.name}{'-again' if only else ''}.xml",
        limit,
        rerun_seconds(name) if only else suite.seconds,
        only,
    )
    if rival:
        # A test that does not end may keep the device until its limit.
        assert_worked(host, rival, begin, RIVAL_PAUSE_SECONDS + (limit if outcomes.over_limit else 0.0))
        rival.stop()
        rival.end()
    return outcomes


def rerun_seconds(name: str) -> float:
    """Return the limit of a run of some of a suite's tests."""
    return suites.SUITES[name].seconds + MAX_RERUN * RERUN_SECONDS


def assert_worked(host: FrameworkHost, rival: GpuProgram, begin: int, pause: float) -> None:
    """Assert that a rival has worked from `begin`, in ns, until now, with pauses of `pause` seconds at most."""
    end = time.monotonic_ns()
    moments = [launch.begin_ns for launch in host.launches(rival) if begin < launch.begin_ns < end]
    assert len(moments) >= MIN_RIVAL_LAUNCHES
    assert longest_pause(moments, begin, end) <= pause * 1e9


def limit_seconds(name: str) -> float:
    """Return the limit of all runs of a suite, each with a second run of some of its tests."""
    return (1 + len(companies(name))) * (suites.SUITES[name].seconds + rerun_seconds(name)) + 60


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.timeout(limit_seconds(name))) for name in suites.SUITES]
)
def test_a_suite_passes_the_same_tests_without_the_shim_and_under_it(host: FrameworkHost, name: str) -> None:
    reason = suites.problem(name)
    if suites.SUITES[name].needs_pytorch:
        reason = reason or conftest.problem()
    if reason:
        pytest.skip(reason)
    runs = {company.name: company for company in [Company(), *companies(name)]}
    file = suites.FOLDER / name / "outcomes.json"
    file.unlink(missing_ok=True)
    outcomes = {}
    for run, company in runs.items():
        outcomes[run] = run_suite(host, name, company)
        write_outcomes(file, outcomes)
    outcomes = settle(outcomes, lambda run, tests: run_suite(host, name, runs[run], tests))
    write_outcomes(file, outcomes)
    bare = outcomes.pop("bare")
    assert len(bare.passed) >= suites.SUITES[name].min_passed
    found = {run: differences(bare, outcome) for run, outcome in outcomes.items()}
    assert not any(found.values()), found


def test_a_rival_that_stands_still_beside_a_suite_is_found(host: FrameworkHost) -> None:
    rival = host.rival("unified", MIB)
    begin = time.monotonic_ns()
    wait_until(lambda: sum(launch.begin_ns > begin for launch in host.launches(rival)) > MIN_RIVAL_LAUNCHES)
    assert_worked(host, rival, begin, WAIT_SECONDS)
    with pytest.raises(AssertionError):
        assert_worked(host, rival, begin, 0.001)
    rival.send(signal.SIGSTOP)
    with pytest.raises(AssertionError):
        assert_worked(host, rival, time.monotonic_ns(), WAIT_SECONDS)


def test_a_run_over_its_limit_leaves_the_outcomes_of_this_night_only(
    host: FrameworkHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_or_fail(_host: FrameworkHost, name: str, company: Company) -> Outcomes:
        if company.mode:
            raise subprocess.TimeoutExpired(name, 1.0)
        return Outcomes(["of this night"], [])

    name = "numba-cuda"
    file = tmp_path / name / "outcomes.json"
    file.parent.mkdir()
    write_outcomes(file, {run: Outcomes(["of last night"], []) for run in ("bare", "unified")})
    monkeypatch.setattr(suites, "FOLDER", tmp_path)
    monkeypatch.setattr(suites, "problem", lambda _: "")
    monkeypatch.setitem(globals(), "run_suite", run_or_fail)
    with pytest.raises(subprocess.TimeoutExpired):
        test_a_suite_passes_the_same_tests_without_the_shim_and_under_it(host, name)
    assert {run: row["passed"] for run, row in json.loads(file.read_text()).items()} == {"bare": ["of this night"]}
