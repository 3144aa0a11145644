"""A host of its own for each test, and rng whose seed is printed with a failure."""

from __future__ import annotations

import os
import random

import pytest

from ..system.conftest import host

__all__ = ["host"]


@pytest.fixture
def rng() -> random.Random:
    """`GPUSHARE_TEST_SEED=n` throws them in the same order again; how processes meet it cannot repeat."""
    seed = int(os.environ.get("GPUSHARE_TEST_SEED", "") or random.randrange(1 << 32))
    print(f"GPUSHARE_TEST_SEED={seed}")
    return random.Random(seed)
