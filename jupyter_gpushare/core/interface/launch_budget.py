"""Launch budget of a client, as a rule sets it and the client's pages carry it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Units.
BLOCKS = "blocks"  # blocks of launches, of all processes of the client together
DEVICE_SECONDS = "device_seconds"  # seconds of work, on each device

# Reasons.
MEASURING = "measuring"  # the scheduler measures the exclusive rate of online clients
ADAPTIVE = "adaptive"  # online clients keep their rate
SHARE = "share"  # other clients get their shares
SURPLUS = "surplus"  # the client has its share and what other clients leave of their shares


@dataclass(frozen=True)
class LaunchBudget:
    """The bound on a client's launches: `rate` units per second, for the sake of the clients in `colocated_with`."""

    rate: float
    unit: str
    reason: str
    colocated_with: tuple[str, ...]


def tightest(budgets: Iterable[LaunchBudget]) -> LaunchBudget | None:
    """Return the budget of a client with several devices, because a process has one page.

    A budget in blocks keeps the rate of online clients and therefore comes before a share.
    """
    return min(budgets, key=lambda budget: (budget.unit != BLOCKS, budget.rate), default=None)
