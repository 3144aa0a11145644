"""Shares: each client gets its guaranteed fraction of the time, and a part of what others leave.

Least recent use per weight comes first, over an exponentially weighted window: whoever has the largest part of its
share missing, as in Gemini (Chen et al., HPDC'20, under KubeShare), where overuse is debited in the same way. A
client's weight is its `share` plus an equal part of what nobody was promised. Use counts by the weight that it was made
under, so that another share holds from then on, and what was used under the old one is no debt. A turn is in
proportion to the weight, so that the fractions hold over a few turns already, and `min_quantum` as long at least if
`time_quantum` has room for that. `limit` holds under every policy (see
`allowance`).

The settings of qGPU and cGPU are presets, which read quotas differently.
"""

from __future__ import annotations

from typing import ClassVar

from ..model import Client, Grant
from ..settings import AUTO, LONGEST_QUANTUM, Settings
from ..usage import Usage
from .base import Policy

_ROUND = 0.5  # all contenders' turns together, in quanta: after ten quanta each fraction is right to a few percent
_LEAST = 1e-3


class Fair(Policy):
    name: ClassVar[str] = "fair"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._served: dict[str, Usage] = {}  # seconds of use per weight

    def weight(self, client: Client) -> float:
        """The fraction of time that the client gets if everybody who wants the device now goes on to."""
        share = self.share(client)
        rivals = max((device.rivals for device in client.books), key=lambda rivals: rivals.count, default=None)
        if rivals is None or not rivals.count:
            return max(share, _LEAST)
        left = max(0.0, 1.0 - rivals.shares) / rivals.count
        return max(share / max(1.0, rivals.shares) + left, _LEAST)

    def key(self, client: Client) -> float:
        return self._of(client).key

    def until(self, grant: Grant, head: Client, patience: float) -> float:
        """Both turns of a pair are so long that the shorter one pays: where two take turns, their lengths alone decide
        who gets how much."""
        mine, other = self.weight(grant.client), self.weight(head)
        quantum = max(self.quantum(grant.client), self.quantum(head))
        longest = LONGEST_QUANTUM if self.settings.time_quantum == AUTO else quantum
        turns = max(quantum * _ROUND, self.settings.min_quantum / min(mine, other))
        return grant.starts + min(turns, longest) * mine

    def ran(self, client: Client, seconds: float, now: float) -> None:
        super().ran(client, seconds, now)
        self._of(client).add(seconds / self.weight(client), now)

    def forget(self, client: Client) -> None:
        super().forget(client)
        self._served.pop(client.id, None)

    def inherit(self, other: Policy) -> None:
        super().inherit(other)
        if isinstance(other, Fair):
            self._served = other._served
            for served in self._served.values():
                served.remember(self.settings.memory_of_use)

    def _of(self, client: Client) -> Usage:
        served = self._served.get(client.id)
        if served is None:
            served = self._served[client.id] = Usage(self.settings.memory_of_use)
        return served


class BestEffort(Fair):
    """qGPU's best-effort: equal parts for all who want some, no caps."""

    name: ClassVar[str] = "best_effort"

    def share(self, client: Client) -> float:
        return 0.0

    def limit(self, client: Client) -> float:
        return 1.0


class FixedShare(Fair):
    """qGPU's fixed-share: the share is the cap as well, even while the device is idle."""

    name: ClassVar[str] = "fixed_share"

    def limit(self, client: Client) -> float:
        return client.quota.share or client.quota.limit


class BurstShare(Fair):
    """qGPU's burst-share: the share is guaranteed, idle time is borrowed and given back at once."""

    name: ClassVar[str] = "burst_share"

    def limit(self, client: Client) -> float:
        return 1.0


class Weighted(Fair):
    """cGPU's time slices by weight: shares count only in proportion to each other."""

    name: ClassVar[str] = "weighted"

    def share(self, client: Client) -> float:
        return client.quota.share or 0.1  # as much as anybody else who did not ask

    def weight(self, client: Client) -> float:
        rivals = max((device.rivals.shares for device in client.books), default=0.0)
        share = self.share(client)
        return share / max(rivals, share)
