"""First come, first served with a fixed quantum: NvShare's policy (Alexopoulos, "nvshare", 2022), the baseline.

Unlike NvShare, nothing is taken away while nobody waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..model import Client, Settings


class FirstComeFirstServed:
    def order(self, waiting: Iterable[Client], now: float) -> list[Client]:
        return sorted(waiting, key=lambda client: client.ticket)

    def quantum(self, client: Client, settings: Settings) -> float:
        return settings.time_quantum
