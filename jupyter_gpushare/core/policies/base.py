"""What every policy decides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..model import Client, Settings


class Policy(Protocol):
    """Stateless but for what it is told; the scheduler does the rest (locks, gangs, closing)."""

    def order(self, waiting: Iterable[Client], now: float) -> list[Client]:
        """Waiting clients, the next one first."""

    def quantum(self, client: Client, settings: Settings) -> float:
        """The longest time in seconds that a grant to `client` lasts while someone else waits."""
