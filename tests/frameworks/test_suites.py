"""Comparison of the results of other projects' own tests without the shim and under it."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..driver_facts.harness import simulated_driver
from ..support.polling import wait_until
from . import conftest, suites
from .comparison import MAX_UNKNOWN, TEST_SECONDS, Outcomes, differences, run_tests, write_outcomes
from .conftest import MIB, MODES, PROGRAMS, FrameworkHost

RIVAL_BYTES = 500 * MIB  # of a device of 1 GiB
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


def run_suite(host: FrameworkHost, name: str, company: Company) -> Outcomes:
    """Run a suite, whose report stays in the folder of the suite."""
    suite = suites.SUITES[name]
    driver, libraries = simulated_driver().parent, suites.library_path(name)
    more = {"PYTHONPATH": str(PROGRAMS), **suites.variables(name, host.folder / "cache", driver)}
    if company.mode:
        more |= {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}
        env = host.client_environment(name, company.quota, GPUSHARE_MEMORY_MODE=company.mode, **more)
    else:
        env = host.environment(LD_LIBRARY_PATH=":".join([*libraries, str(driver)]), **more)
    rival = host.rival(company.mode, RIVAL_BYTES) if company.rival else None
    outcomes = run_tests(
        [suites.python(name), "-m", "pytest", *suites.arguments(name)],
        env,
        suites.source(name) / suite.folder if suite.repository else host.folder,
        suites.FOLDER / name / f"{company.name}.xml",
        TEST_SECONDS,
        suite.seconds,
    )
    if rival:
        ended = time.monotonic_ns()
        wait_until(lambda: host.worked_since(ended, rival))
        rival.stop()
        rival.end()
    return outcomes


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.timeout((1 + len(companies(name))) * suite.seconds + 60))
        for name, suite in suites.SUITES.items()
    ],
)
def test_a_suite_passes_the_same_tests_without_the_shim_and_under_it(host: FrameworkHost, name: str) -> None:
    reason = suites.problem(name)
    if suites.SUITES[name].needs_pytorch:
        reason = reason or conftest.problem()
    if reason:
        pytest.skip(reason)
    outcomes = {company.name: run_suite(host, name, company) for company in [Company(), *companies(name)]}
    write_outcomes(suites.FOLDER / name / "outcomes.json", outcomes)
    bare = outcomes.pop("bare")
    assert len(bare.passed) >= suites.SUITES[name].min_passed
    found = {run: differences(bare, outcome) for run, outcome in outcomes.items()}
    assert not any(found.values()), found


TESTS = """
import threading, pytest

def test_passes():
    pass

def test_fails():
    assert False

@pytest.mark.parametrize("kind", ["a/b::c"])
def test_never_ends(kind):
    threading.Event().wait()

def test_ends_the_process():
    import os
    os._exit(1)

def test_passes_in_the_third_process():
    pass
"""


@pytest.mark.timeout(400)
def test_a_test_over_its_limit_is_told_from_a_failed_test(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    outcomes = run_tests(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "pytest_timeout", "-c/dev/null", "--rootdir=.", "."],
        os.environ | {"PYTHONPATH": str(PROGRAMS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        tmp_path,
        tmp_path / "report.xml",
        5.0,
        300.0,
    )
    assert outcomes == Outcomes(
        ["test_them.test_passes", "test_them.test_passes_in_the_third_process"],
        ["test_them.test_never_ends[a/b::c]"],
    )


def test_a_test_over_its_limit_in_one_run_is_no_difference() -> None:
    bare = Outcomes(["fast", "slow"], ["endless"])
    assert differences(bare, Outcomes(["fast"], ["endless", "slow"])) == {}
    assert differences(Outcomes(["fast"], ["slow"]), Outcomes(["fast", "slow"], [])) == {}


def test_tests_that_pass_in_one_run_are_differences() -> None:
    assert differences(Outcomes(["both", "first"], []), Outcomes(["both", "second"], [])) == {
        "passed in the first run only": ["first"],
        "passed in the second run only": ["second"],
    }


def test_many_tests_over_their_limit_are_a_difference() -> None:
    slow = [f"slow {number}" for number in range(MAX_UNKNOWN + 1)]
    assert differences(Outcomes(slow, []), Outcomes([], slow)) == {"over the limit": slow}
    assert differences(Outcomes([], slow), Outcomes([], slow)) == {}
