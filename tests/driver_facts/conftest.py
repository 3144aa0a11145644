"""Fixture that adds the observations of each fact to the report of a run (`harness.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .harness import observations


def record_observations(folder: Path, record: Callable[[str, object], None]) -> None:
    if found := observations(folder):
        record("observed", found)


@pytest.fixture(autouse=True)
def observed(tmp_path: Path, record_property: Callable[[str, object], None]) -> Iterator[None]:
    yield
    record_observations(tmp_path, record_property)
