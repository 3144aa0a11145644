"""The launch budget of a client, as rules ask for it and its pages have it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Units.
BLOCKS = "blocks"  # of launches, all processes of the client together
DEVICE_SECONDS = "device_seconds"  # of work, on each device

# Reasons.
MEASURING = "measuring"  # until it is known how fast online clients are alone
ADAPTIVE = "adaptive"  # online clients keep their speed
SHARE = "share"  # the others have their shares
SURPLUS = "surplus"  # its share, and what the others leave of theirs


@dataclass(frozen=True)
class LaunchBudget:
    """What a client may launch: `rate` units per second, for the sake of the clients in `colocated_with`."""

    rate: float
    unit: str
    reason: str
    colocated_with: tuple[str, ...]


def tightest(budgets: Iterable[LaunchBudget]) -> LaunchBudget | None:
    """Return the one that a client of several devices gets, since a process has one page.

    One in blocks keeps the speed of online clients, which comes before shares.
    """
    return min(budgets, key=lambda budget: (budget.unit != BLOCKS, budget.rate), default=None)
