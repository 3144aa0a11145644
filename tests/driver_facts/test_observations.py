"""Test that the values of a fact reach the message of its failure and the report of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..gpu.report import Row, format_rows
from .conftest import record_observations
from .harness import Cuda, on_driver


def refused(cuda: Cuda) -> None:
    assert int(cuda.cuDeviceGetCount()) > 0
    assert cuda.code("cuMemFree", 1) == 0


def test_a_failure_names_the_assertion_and_the_values(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as failure:
        on_driver()(refused)(tmp_path)
    newest = str(failure.value).splitlines()[0]
    assert newest.startswith("exit status 1: AssertionError(); test_observations.py:")
    assert 'assert cuda.code("cuMemFree", 1) == 0; cuMemFree: 1; cuDeviceGetCount: 0 1' in newest


def test_the_values_of_a_fact_are_a_figure_that_the_table_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "observed").write_text("cuMemFree: 1\n")
    figures: dict[str, Any] = {}
    record_observations(tmp_path, figures.__setitem__)
    assert figures == {"observed": ["cuMemFree: 1"]}
    rows = [
        Row("driver_facts", name, outcome, 1.0, "", figures) for name, outcome in (("a", "passed"), ("b", "failed"))
    ]
    assert list(format_rows(rows)) == ["driver_facts: 2 s, 1 tests passed without figures", "  failed    1.0 s  b"]
