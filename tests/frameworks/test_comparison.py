"""Versions of the installed test suites, limits of their tests, and differences between two runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from . import suites
from .comparison import MAX_RERUN, Outcomes, differences, longest_pause, run_tests, settle
from .conftest import PROGRAMS

NAME = "numba-cuda"
SUITE = suites.SUITES[NAME]


@pytest.fixture(autouse=True)
def frameworks() -> None:
    """Replace the fixture that requires PyTorch."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a suite by steps that all succeed and do nothing."""
    monkeypatch.setattr(suites, "FOLDER", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    (tmp_path / NAME).mkdir()
    suites.get(NAME)
    assert suites.problem(NAME) == ""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "change",
    [{"seconds": 1.0}, {"min_passed": 1}, {"tests": []}, {"left_out": "slow"}, {"runs_contended": False}],
    ids=str,
)
def test_a_suite_stays_installed_if_another_limit_or_selection_changes(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setitem(suites.SUITES, NAME, replace(SUITE, **change))
    assert suites.problem(NAME) == ""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "change",
    [
        {"requirements": ["another"]},
        {"repository": "another"},
        {"revision": "another"},
        {"sources": ("another",)},
        {"framework": ("another",)},
        {"opened": ("another",)},
    ],
    ids=str,
)
def test_a_suite_of_another_version_has_to_be_installed(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setitem(suites.SUITES, NAME, replace(SUITE, **change))
    assert "other versions" in suites.problem(NAME)


@pytest.mark.usefixtures("installed")
def test_a_failed_installation_leaves_the_former_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(subprocess, "run", fail)
    with monkeypatch.context() as patch:
        patch.setitem(suites.SUITES, NAME, replace(SUITE, requirements=["another"]))
        with pytest.raises(subprocess.CalledProcessError):
            suites.get(NAME)
        assert "other versions" in suites.problem(NAME)
    assert suites.problem(NAME) == ""


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


def run_them(folder: Path, limit: float, only: Sequence[str] = ()) -> Outcomes:
    return run_tests(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "pytest_timeout", "-c/dev/null", "--rootdir=.", "."],
        os.environ | {"PYTHONPATH": str(PROGRAMS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        folder,
        folder / "report.xml",
        limit,
        300.0,
        only,
    )


@pytest.mark.timeout(400)
def test_a_test_over_its_limit_is_told_from_a_failed_test(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    assert run_them(tmp_path, 5.0) == Outcomes(
        ["test_them.test_passes", "test_them.test_passes_in_the_third_process"],
        ["test_them.test_never_ends[a/b::c]"],
    )


def test_a_run_of_some_tests_has_no_others(tmp_path: Path) -> None:
    (tmp_path / "test_them.py").write_text(TESTS)
    names = ["test_them.test_passes_in_the_third_process", "test_them.test_fails"]
    assert run_them(tmp_path, 60.0, names) == Outcomes(names[:1], [])
    with pytest.raises(AssertionError):
        run_them(tmp_path, 60.0, ["test_them.test_of_another_file"])


def test_a_test_that_ends_under_a_longer_limit_is_no_difference() -> None:
    runs = {"bare": Outcomes(["fast"], ["slow here"]), "swap": Outcomes(["fast", "slow here"], ["slow there"])}
    runs["bare"].passed.append("slow there")
    asked = []

    def rerun(name: str, tests: list[str]) -> Outcomes:
        asked.append((name, tests))
        return Outcomes(tests, [])

    settled = settle(runs, rerun)
    assert asked == [("bare", ["slow here"]), ("swap", ["slow there"])]
    assert differences(settled["bare"], settled["swap"]) == {}


@pytest.mark.parametrize("passed", [["stuck"], []], ids=["passed", "failed"])
def test_a_test_that_never_ends_in_one_run_is_a_difference(passed: list[str]) -> None:
    settled = settle(
        {"bare": Outcomes(passed, []), "swap": Outcomes([], ["stuck"]), "plain": Outcomes(passed, [])},
        lambda _, tests: Outcomes([], tests),
    )
    assert differences(settled["bare"], settled["swap"])["ended in the first run only"] == ["stuck"]
    assert differences(settled["bare"], settled["plain"]) == {}


def test_a_test_that_never_ends_in_any_run_does_not_run_again() -> None:
    runs = {"bare": Outcomes([], ["endless"]), "swap": Outcomes([], ["endless"])}
    assert settle(runs, lambda *_: pytest.fail("ran again")) == runs
    assert differences(runs["bare"], runs["swap"]) == {}


def test_many_tests_that_end_in_one_run_only_do_not_run_again() -> None:
    many = [f"slow {number}" for number in range(MAX_RERUN + 1)]
    runs = {"bare": Outcomes(many, []), "swap": Outcomes([], many)}
    assert settle(runs, lambda *_: pytest.fail("ran again")) == runs
    assert differences(runs["bare"], runs["swap"])["ended in the first run only"] == many


def test_tests_that_pass_in_one_run_are_differences() -> None:
    assert differences(Outcomes(["both", "first"], []), Outcomes(["both", "second"], [])) == {
        "passed in the first run only": ["first"],
        "passed in the second run only": ["second"],
    }


def test_a_pause_may_be_at_the_begin_or_the_end() -> None:
    assert longest_pause([1, 2, 3], 0, 9) == 6
    assert longest_pause([7, 6], 0, 9) == 6
    assert longest_pause([2, 7], 0, 9) == 5
    assert longest_pause([-1, 10], 0, 9) == 9
