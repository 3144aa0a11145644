"""Time limits of a run on a card: of each part, and one deadline for all commands of `make test-gpu`.

The variable `GPUSHARE_TEST_DEADLINE` has the deadline in seconds since the epoch; without it there are no limits.
A part that hangs leaves time for the parts after it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import pytest

from .report import part_of

NAME = "card limits"
DEADLINE = "GPUSHARE_TEST_DEADLINE"
# Seconds of each part. The number bounds each test, and the later tests of the part are skipped.
PART_SECONDS = {
    "lookup": 20,
    "bypass": 60,
    "driver_facts": 120,  # of each worker
    "costs": 30,
    "trainings": 70,
    "graphs": 20,
    "frameworks": 130,
    "exits": 90,
    "hibernation": 60,
    "cgroup": 50,
    "benches": 200,
}


class CardLimits:
    """Plugin that ends each test at the limit of its part or at the deadline, and skips the tests after that."""

    def __init__(self, deadline: float, clock: Callable[[], float] = time.time) -> None:
        self._deadline = deadline
        self._clock = clock
        self._ends: dict[str, float] = {}  # of the parts that have begun

    def seconds_left(self, part: str) -> float:
        """Return the seconds that a test of the part may take now; the first question begins the part."""
        now = self._clock()
        end = self._ends.setdefault(part, now + PART_SECONDS.get(part, math.inf))
        return min(end, self._deadline) - now

    def reason_to_skip(self, part: str) -> str | None:
        if self.seconds_left(part) > 0:
            return None
        if self._clock() >= self._deadline:
            return "not run: the time of the whole run is over"
        return f"not run: the part {part} has used its {PART_SECONDS[part]} s"

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout reads the marker
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        item.add_marker(pytest.mark.timeout(max(1.0, self.seconds_left(part_of(item.nodeid)))), append=False)
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if reason := self.reason_to_skip(part_of(item.nodeid)):
            pytest.skip(reason)


def register_limits(config: pytest.Config) -> None:
    """Register the limits of a run once, in each of its workers as well."""
    deadline = os.environ.get(DEADLINE)
    if deadline and not config.pluginmanager.has_plugin(NAME):
        config.pluginmanager.register(CardLimits(float(deadline)), NAME)
