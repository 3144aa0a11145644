"""Runs of other projects' tests by pytest, and the comparison of their outcomes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

TEST_SECONDS = 60.0  # limit of one test: some wait without end for a kernel, and no kernel is computed
MAX_ENDED_PROCESSES = 100  # by the limit or by a crash; a run without this option ends at the fifth
MAX_UNKNOWN = 5  # tests without an outcome in one of two runs, because of the limit


@dataclass(frozen=True)
class Outcomes:
    """Names of the tests of a run that passed, and of those that did not end within the limit."""

    passed: list[str]
    over_limit: list[str]


def run_tests(
    command: Sequence[str | Path], env: dict[str, str], folder: Path, report: Path, limit: float, seconds: float
) -> Outcomes:
    """Run pytest by a command in a folder, and return the outcomes, which `report` without its suffix names.

    A test has a limit in seconds, as has the whole run. The variable PYTHONPATH must have the folder of suites_plugin.
    Raises subprocess.TimeoutExpired after `seconds`.
    """
    over_limit = report.with_suffix(".limit")
    for file in (report, over_limit):
        file.unlink(missing_ok=True)
    options = ["-q", "-n", "1", "-p", "no:cacheprovider", "-p", "suites_plugin", f"--junitxml={report}"]
    options += [f"--max-worker-restart={MAX_ENDED_PROCESSES}", "-o", "consider_namespace_packages=true"]
    options += [f"--timeout={limit}", "--timeout-method=thread"]
    done = subprocess.run(
        [*command, *options],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert report.exists(), done.stdout + done.stderr
    assert "maximum crashed workers reached" not in done.stdout, done.stdout + done.stderr
    cases = ElementTree.parse(report).iter("testcase")
    return Outcomes(
        sorted({f"{case.get('classname')}.{case.get('name')}" for case in cases if len(case) == 0}),
        sorted(set(over_limit.read_text().splitlines())) if over_limit.exists() else [],
    )


def differences(first: Outcomes, second: Outcomes) -> dict[str, list[str]]:
    """Return the tests that passed in one run only, and the tests that the limit has kept from a comparison.

    A test that passed in one run and reached its limit in the other is no difference. The result has such tests only
    if they are more than MAX_UNKNOWN.
    """
    over_limit = {*first.over_limit, *second.over_limit}
    either = {*first.passed} ^ {*second.passed}
    found = {
        "passed in the first run only": either - over_limit - {*second.passed},
        "passed in the second run only": either - over_limit - {*first.passed},
        "over the limit": either & over_limit if len(either & over_limit) > MAX_UNKNOWN else set(),
    }
    return {kind: sorted(tests) for kind, tests in found.items() if tests}


def write_outcomes(file: Path, outcomes: dict[str, Outcomes]) -> None:
    """Write the outcomes of the runs of a suite as JSON, each with its number of passed tests."""
    rows = {run: {"number passed": len(found.passed), **asdict(found)} for run, found in outcomes.items()}
    file.write_text(json.dumps(rows, indent=1))
