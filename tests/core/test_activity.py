"""Tests of the launches of a client, which count for each set of online clients that share its device."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.interface.events import Progress
from jupyter_gpushare.core.throttle.activity import WINDOW_SECONDS, Activity

ALONE: frozenset[str] = frozenset()


class ColocatedClient:
    """A client whose launches are read once a second, in an endless turn beside an offline client."""

    def __init__(self) -> None:
        self.activity = Activity()
        self.activity.colocated.set(True, 0.0)
        self.now = self.blocks = 0

    def launch(self, others: frozenset[str], blocks: int, seconds: int = 4) -> None:
        """Launch so many blocks in each second beside these online clients."""
        self.activity.set_online(others)
        for _ in range(seconds):
            self.now += 1
            self.blocks += blocks
            progress = Progress("client", self.blocks, self.blocks, 0.0)
            self.activity.add(progress, self.now, self.now, is_in_turn=True, measured_exclusively=False)

    def rate(self, others: frozenset[str]) -> float | None:
        self.activity.set_online(others)
        return self.activity.window.rate


def test_a_rate_holds_for_its_set_of_online_clients() -> None:
    client, together = ColocatedClient(), frozenset({"other"})
    for _ in range(3):
        client.launch(ALONE, 100)
        client.launch(together, 50)
    assert client.rate(ALONE) == pytest.approx(100 * WINDOW_SECONDS)
    assert client.rate(together) == pytest.approx(50 * WINDOW_SECONDS)


def test_the_second_in_which_the_set_changes_counts_for_neither_set() -> None:
    client, together = ColocatedClient(), frozenset({"other"})
    client.launch(ALONE, 100)
    client.launch(together, 80, seconds=1)
    client.launch(together, 50, seconds=5)
    client.launch(ALONE, 70, seconds=1)
    assert client.rate(ALONE) == pytest.approx(100 * WINDOW_SECONDS)
    assert client.rate(together) == pytest.approx(50 * WINDOW_SECONDS)


def test_the_rate_of_a_set_that_has_not_come_back_for_long_is_dropped() -> None:
    """Clients end, and their sets never come back."""
    client = ColocatedClient()
    sets = [frozenset({f"ended {number}"}) for number in range(40)]
    for online in (ALONE, *sets):
        client.launch(online, 100)
    assert client.rate(sets[-10]) == pytest.approx(100 * WINDOW_SECONDS)
    assert client.rate(sets[0]) is None
