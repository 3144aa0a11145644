"""Runs of other projects' tests by pytest, and the comparison of their outcomes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

TEST_SECONDS = 60.0  # limit of one test: some wait without end for a kernel, and no kernel is computed
MAX_ENDED_PROCESSES = 100  # by the limit or by a crash; a run without this option ends at the fifth
RERUN_SECONDS = 5 * TEST_SECONDS  # limit of a test that reached its limit in one of two runs only
MAX_RERUN = 5  # tests; more that end in one of two runs only are a difference without a second run


@dataclass(frozen=True)
class Outcomes:
    """Names of the tests of a run that passed, and of those that did not end within the limit."""

    passed: list[str]
    over_limit: list[str]


def run_tests(
    command: Sequence[str | Path],
    env: dict[str, str],
    folder: Path,
    report: Path,
    limit: float,
    seconds: float,
    only: Sequence[str] = (),
) -> Outcomes:
    """Run pytest by a command in a folder, and return the outcomes, which `report` without its suffix names.

    A test has a limit in seconds, as has the whole run. `only` has the names of the tests to run, if not all.
    The variable PYTHONPATH must have the folder of suites_plugin. Raises subprocess.TimeoutExpired after `seconds`.
    """
    over_limit, names = report.with_suffix(".limit"), report.with_suffix(".names")
    for file in (report, over_limit):
        file.unlink(missing_ok=True)
    options = ["-q", "-n", "1", "-p", "no:cacheprovider", "-p", "suites_plugin", f"--junitxml={report}"]
    options += [f"--max-worker-restart={MAX_ENDED_PROCESSES}", "-o", "consider_namespace_packages=true"]
    options += [f"--timeout={limit}", "--timeout-method=thread"]
    if only:
        names.write_text("\n".join(only))
        options.append(f"--only-tests={names}")
    done = subprocess.run(
        [*command, *options],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert report.exists(), done.stdout + done.stderr
    assert done.returncode != pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout + done.stderr
    assert "maximum crashed workers reached" not in done.stdout, done.stdout + done.stderr
    cases = ElementTree.parse(report).iter("testcase")
    return Outcomes(
        sorted({f"{case.get('classname')}.{case.get('name')}" for case in cases if len(case) == 0}),
        sorted(set(over_limit.read_text().splitlines())) if over_limit.exists() else [],
    )


def settle(outcomes: dict[str, Outcomes], rerun: Callable[[str, list[str]], Outcomes]) -> dict[str, Outcomes]:
    """Return the outcomes after a second run of the tests that ended only in the first of the runs, or only in another.

    `rerun` gets the name of the run in which some tests did not end, and runs these tests alone with a longer limit.
    """
    settled = dict(outcomes)
    first, *others = outcomes

    def over_limit(name: str) -> set[str]:
        return {*settled[name].over_limit}

    def run_again(name: str, tests: set[str]) -> None:
        if 0 < len(tests) <= MAX_RERUN:
            again = rerun(name, sorted(tests))
            settled[name] = Outcomes(
                sorted({*settled[name].passed, *again.passed}),
                sorted(over_limit(name) - tests | {*again.over_limit}),
            )

    run_again(first, {test for name in others for test in over_limit(first) - over_limit(name)})
    for name in others:
        run_again(name, over_limit(name) - over_limit(first))
    return settled


def differences(first: Outcomes, second: Outcomes) -> dict[str, list[str]]:
    """Return the tests that passed in one run only, and the tests that ended in one run only."""
    found = {
        "passed in the first run only": {*first.passed} - {*second.passed},
        "passed in the second run only": {*second.passed} - {*first.passed},
        "ended in the first run only": {*second.over_limit} - {*first.over_limit},
        "ended in the second run only": {*first.over_limit} - {*second.over_limit},
    }
    return {kind: sorted(tests) for kind, tests in found.items() if tests}


def longest_pause(moments: Iterable[int], begin: int, end: int) -> int:
    """Return the longest time without one of the moments between `begin` and `end`, in their unit."""
    edges = [begin, *sorted(moment for moment in moments if begin < moment < end), end]
    return max(later - earlier for earlier, later in pairwise(edges))


def write_outcomes(file: Path, outcomes: dict[str, Outcomes]) -> None:
    """Write the outcomes of the runs of a suite as JSON, each with its number of passed tests."""
    rows = {run: {"number passed": len(found.passed), **asdict(found)} for run, found in outcomes.items()}
    file.write_text(json.dumps(rows, indent=1))
