"""Driver of one process by the agent's rule."""

from __future__ import annotations

import pytest

from .rule_driver import RuleDriver


@pytest.fixture
def process() -> RuleDriver:
    return RuleDriver()
