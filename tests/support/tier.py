"""Tier of a test run: `short` in `make test`, `nightly` in `make nightly`.

`GPUSHARE_TEST_TIER=nightly` selects the nightly tier.
In the nightly tier, random tests have more examples, and tests and parameters marked `nightly` run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

Value = TypeVar("Value")

TIERS = ("short", "nightly")
TIER = os.environ.get("GPUSHARE_TEST_TIER", "short")
NIGHTLY = TIER == "nightly"
if TIER not in TIERS:
    raise ValueError(f"GPUSHARE_TEST_TIER must be one of {', '.join(TIERS)}, not {TIER!r}")


def strength(short: Value, nightly: Value) -> Value:
    """Return the value of this tier."""
    return nightly if NIGHTLY else short


def nightly(values: Iterable[Any]) -> list[Any]:
    """Return parameters for `parametrize` that only the nightly tier runs."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly) for value in values
    ]


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove the tests of the nightly tier from a run of the short tier."""
    if NIGHTLY:
        return
    late = [item for item in items if item.get_closest_marker("nightly")]
    if late:
        config.hook.pytest_deselected(items=late)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
