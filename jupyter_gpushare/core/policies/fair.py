"""Shares: each client gets its guaranteed fraction of the time, and a part of what others leave.

The client with the largest part of its share missing comes first, as in Gemini (Chen et al., HPDC'20, under KubeShare),
where overuse is debited in the same way. Virtual clocks count what is missing (see `clocks`), so that idle time is lent
and given back at once. A client's weight is its `share` plus an equal part of what no client was promised. A turn is in
proportion to the weight, so that the fractions hold over a few turns already. `limit` holds under every policy (see
`allowance`).

The settings of qGPU and cGPU are presets, which read quotas differently.
"""

from __future__ import annotations

from typing import ClassVar

from ..model import Client, Grant
from ..settings import AUTO, LONGEST_QUANTUM
from .clocks import VirtualClocks

_ROUND = 0.5  # all contenders' turns together, in quanta: after ten quanta each fraction is right to a few percent
_LEAST = 1e-3


class Fair(VirtualClocks):
    name: ClassVar[str] = "fair"

    def weight(self, client: Client) -> float:
        """The fraction of time that the client gets if everybody who wants the device now goes on to."""
        share = self.share(client)
        rivals = max((device.rivals for device in client.books), key=lambda rivals: rivals.count, default=None)
        if rivals is None or not rivals.count:
            return max(share, _LEAST)
        left = max(0.0, 1.0 - rivals.shares) / rivals.count
        return max(share / max(1.0, rivals.shares) + left, _LEAST)

    def lead(self, client: Client) -> float:
        return self._turn(client)

    def until(self, grant: Grant, head: Client, patience: float) -> float:
        client = grant.client
        turn = self._turn(client, head)
        # Whoever overused is waited for until the others have caught up, in one turn.
        behind = (self.key(head) - self.key(client)) * self.weight(client)
        return grant.starts + max(turn, min(behind, self.quantum(client)))

    def _turn(self, client: Client, other: Client | None = None) -> float:
        """Seconds, of a turn that others wait for: a part of a round, by its weight. Rounds are so long that the
        shorter turn of a pair is one, and pays for its switch: where two alternate, their lengths alone decide."""
        mine = self.weight(client)
        theirs = self.weight(other) if other else mine
        quantum = max(self.quantum(one) for one in (client, other) if one)
        cost = max(one.switching.cost for one in (client, other) if one)
        rivals = max((device.rivals.count for device in client.books), default=1)
        pays = cost / self.settings.switch_overhead * rivals
        least = max(self.settings.min_quantum, cost)
        longest = LONGEST_QUANTUM if self.settings.time_quantum == AUTO else quantum
        return min(max(quantum * _ROUND, pays, least / min(mine, theirs)), longest / max(mine, theirs)) * mine


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
