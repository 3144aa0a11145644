"""Tests of the deadline and the limits of a run on a card (`limits.py`), on the simulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from .limits import DEADLINE, PART_SECONDS, CardLimits

ROOT = Path(__file__).resolve().parents[2]
OVER = "not run: the time of the whole run is over"


def test_after_the_deadline_all_parts_are_skipped_with_the_reason_in_the_report(tmp_path: Path) -> None:
    """The facts are a run of their own under the same deadline."""
    for figures, tests in [("facts", "tests/driver_facts/test_waits.py"), ("parts", "tests/gpu/test_lookup.py")]:
        folder = tmp_path / figures
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", tests],
            cwd=ROOT,
            env={**os.environ, DEADLINE: "1", "GPUSHARE_TEST_FIGURES": str(folder)},
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stdout
        results = json.loads((folder / "report.json").read_text())["tests"]
        assert results
        assert {(one["outcome"], one["reason"]) for one in results} == {("skipped", OVER)}
        table = run.stdout.partition("simulated device")[2]
        for one in results:
            assert f"  skipped   0.0 s  {one['test']}  {OVER}\n" in table


def test_a_test_may_take_the_rest_of_its_part_and_of_the_run() -> None:
    now = [1000.0]
    limits = CardLimits(deadline=1100, clock=lambda: now[0])
    assert limits.seconds_left("limits") == 100  # of a file that is no part of a run on a card
    assert limits.seconds_left("bypass") == PART_SECONDS["bypass"] == 60
    now[0] += 50
    assert limits.seconds_left("bypass") == 10
    assert limits.seconds_left("frameworks") == 50  # of 130
    now[0] += 20
    assert limits.reason_to_skip("bypass") == "not run: the part bypass has used its 60 s"
    assert limits.reason_to_skip("frameworks") is None
    now[0] += 30
    assert limits.reason_to_skip("bypass") == limits.reason_to_skip("frameworks") == OVER


def test_the_limits_name_all_parts_of_the_command() -> None:
    command = ["make", "--no-print-directory", "-n", "test-gpu", "CARD_SECONDS=77", "ARGS="]
    recipe = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sets, _, runs = recipe.partition("-m pytest")
    assert f"export {DEADLINE}=$(($(date +%s) + 77))" in sets
    assert DEADLINE not in runs
    parts = [Path(word).stem.removeprefix("test_") for word in runs.split() if word.startswith("tests/")]
    assert parts[:2] == ["lookup", "bypass"]
    assert set(parts) == set(PART_SECONDS)


def test_the_command_needs_no_packages_of_a_network_but_those_of_pip() -> None:
    """The machine of a card may have no network, and pip may have its packages in a folder."""
    command = ["make", "--no-print-directory", "-n", "--always-make", "test-gpu", "ARGS="]
    recipe = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "pip install" in recipe
    assert "jlpm" not in recipe
