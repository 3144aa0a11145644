"""Fixtures of the chaos tests: a host of its own for each test, and a random generator with a printed seed."""

from __future__ import annotations

import os
import random

import pytest

from ..system.conftest import host

__all__ = ["host"]


@pytest.fixture
def rng() -> random.Random:
    """Return a random generator; `GPUSHARE_TEST_SEED=n` repeats its numbers, but not the timing of the processes."""
    seed = int(os.environ.get("GPUSHARE_TEST_SEED", "") or random.randrange(1 << 32))
    print(f"GPUSHARE_TEST_SEED={seed}")
    return random.Random(seed)
