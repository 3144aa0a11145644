"""Shares: each client gets its guaranteed fraction of the time, and a part of what others leave.

The client with the largest part of its share missing comes first, as in Gemini (Chen et al., HPDC'20, under KubeShare),
where overuse is debited in the same way. Virtual clocks count the missing part (see `virtual_clocks`), so that other
clients may use idle time, and the idle client gets it back at once. A client's weight is its `share` plus an equal part
of the time that no share guarantees. The length of a turn is in proportion to the weight, so that the fractions hold
over a few turns. `limit` holds under every policy (see `time_limit`).

The settings of qGPU and cGPU are presets, which read quotas differently.
"""

from __future__ import annotations

from typing import ClassVar

from ...interface.settings import AUTO, MAX_QUANTUM_SECONDS
from ...state.model import Client, Grant
from .virtual_clocks import VirtualClocks

_ROUND_QUANTA = (
    0.5  # all contenders' turns together, in quanta: after ten quanta each fraction is right to a few percent
)
_MIN_WEIGHT = 1e-3


class Fair(VirtualClocks):
    name: ClassVar[str] = "fair"

    def weight(self, client: Client) -> float:
        """The fraction of time that the client gets if everybody who wants the device now goes on to."""
        share = self.share(client)
        rivals = max(
            (device.contention for device in client.device_bindings), key=lambda rivals: rivals.count, default=None
        )
        if rivals is None or not rivals.count:
            return max(share, _MIN_WEIGHT)
        left = max(0.0, 1.0 - rivals.shares) / rivals.count
        return max(share / max(1.0, rivals.shares) + left, _MIN_WEIGHT)

    def run_ahead_seconds(self, client: Client) -> float:
        return self._turn_seconds(client)

    def turn_end(self, grant: Grant, head: Client, starvation_deadline: float) -> float:
        client = grant.client
        turn = self._turn_seconds(client, head)
        # Whoever overused is waited for until the others have caught up, in one turn.
        behind = (self.key(head) - self.key(client)) * self.weight(client)
        return grant.work_starts_at + max(turn, min(behind, self.quantum(client)))

    def _turn_seconds(self, client: Client, other: Client | None = None) -> float:
        """Seconds, of a turn that others wait for: a part of a round, by its weight. Rounds are so long that the
        shorter turn of a pair is one, and pays for its switch: where two alternate, their lengths alone decide."""
        mine = self.weight(client)
        theirs = self.weight(other) if other else mine
        quantum = max(self.quantum(one) for one in (client, other) if one)
        cost = max(one.switch_cost.total for one in (client, other) if one)
        rivals = max((device.contention.count for device in client.device_bindings), default=1)
        pays = cost / self.settings.switch_overhead * rivals
        least = max(self.settings.min_quantum, cost)
        longest = MAX_QUANTUM_SECONDS if self.settings.time_quantum == AUTO else quantum
        return min(max(quantum * _ROUND_QUANTA, pays, least / min(mine, theirs)), longest / max(mine, theirs)) * mine


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
        rivals = max((device.contention.shares for device in client.device_bindings), default=0.0)
        share = self.share(client)
        return share / max(rivals, share)
