"""Versions of the installed test suites."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from . import suites

NAME = "numba-cuda"
SUITE = suites.SUITES[NAME]


@pytest.fixture(autouse=True)
def frameworks() -> None:
    """Replace the fixture that requires PyTorch."""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a suite by steps that all succeed and do nothing."""
    monkeypatch.setattr(suites, "FOLDER", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    (tmp_path / NAME).mkdir()
    suites.get(NAME)
    assert suites.problem(NAME) == ""


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
