"""Report and time limits of a run on a card, with the observations of each fact (`harness.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..gpu.limits import register_limits
from ..gpu.report import register_report
from .harness import observations


def pytest_configure(config: pytest.Config) -> None:
    register_report(config)
    register_limits(config)


def record_observations(folder: Path, record: Callable[[str, object], None]) -> None:
    if found := observations(folder):
        record("observed", found)


@pytest.fixture(autouse=True)
def observed(tmp_path: Path, record_property: Callable[[str, object], None]) -> Iterator[None]:
    yield
    record_observations(tmp_path, record_property)
