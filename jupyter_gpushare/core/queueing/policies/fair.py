"""Policy with shares: each client gets its guaranteed fraction of the time, and a part of what other clients leave.

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
from .base import SWITCH_OVERHEAD
from .virtual_clocks import VirtualClocks

_ROUND_QUANTA = 0.5  # turns of all contenders, in quanta: after ten quanta each fraction is exact to a few percent
_MIN_WEIGHT = 1e-3


class Fair(VirtualClocks):
    name: ClassVar[str] = "fair"

    def weight(self, client: Client) -> float:
        """Return the fraction of time that the client gets if all present contenders go on to contend."""
        share = self.share(client)
        contention = max(
            (device.contention for device in self.devices_of(client)),
            key=lambda contention: contention.count,
            default=None,
        )
        if contention is None or not contention.count:
            return max(share, _MIN_WEIGHT)
        left = max(0.0, 1.0 - contention.shares) / contention.count
        return max(share / max(1.0, contention.shares) + left, _MIN_WEIGHT)

    def run_ahead_seconds(self, client: Client) -> float:
        return self._turn_seconds(client)

    def turn_end(self, grant: Grant, head: Client, starvation_deadline: float) -> float:
        client = grant.client
        turn = self._turn_seconds(client, head)
        # The head of the queue waits for the client's overuse until it has caught up, in one turn.
        behind = (self.key(head) - self.key(client)) * self.weight(client)
        return grant.work_starts_at + max(turn, min(behind, self.quantum(client)))

    def _turn_seconds(self, client: Client, other: Client | None = None) -> float:
        """Return the seconds of a contended turn: a part of a round, by the client's weight.

        A round is so long that the shorter turn of a pair is at least the shortest turn and pays for its switch. Two
        clients that alternate get their fractions only from the lengths of their turns.
        """
        own_weight = self.weight(client)
        other_weight = self.weight(other) if other else own_weight
        quantum = max(self.quantum(one) for one in (client, other) if one)
        cost = max(one.switch_cost.total for one in (client, other) if one)
        contenders = max((device.contention.count for device in self.devices_of(client)), default=1)
        paying_seconds = cost / SWITCH_OVERHEAD * contenders
        min_turn = max(self.settings.min_quantum, cost)
        max_turn = MAX_QUANTUM_SECONDS if self.settings.time_quantum == AUTO else quantum
        round_seconds = max(quantum * _ROUND_QUANTA, paying_seconds, min_turn / min(own_weight, other_weight))
        return min(round_seconds, max_turn / max(own_weight, other_weight)) * own_weight


class BestEffort(Fair):
    """qGPU's best-effort: equal parts for all contenders, and no caps."""

    name: ClassVar[str] = "best_effort"

    def share(self, client: Client) -> float:
        return 0.0

    def limit(self, client: Client) -> float:
        return 1.0


class FixedShare(Fair):
    """qGPU's fixed-share: the share is the cap as well, even on an idle device."""

    name: ClassVar[str] = "fixed_share"

    def limit(self, client: Client) -> float:
        return client.quota.share or client.quota.limit


class BurstShare(Fair):
    """qGPU's burst-share: the share is guaranteed, and idle time is borrowed and given back at once."""

    name: ClassVar[str] = "burst_share"

    def limit(self, client: Client) -> float:
        return 1.0


class Weighted(Fair):
    """cGPU's time slices by weight: shares count only in proportion to each other."""

    name: ClassVar[str] = "weighted"

    def share(self, client: Client) -> float:
        return client.quota.share or 0.1  # the same for all clients without a share

    def weight(self, client: Client) -> float:
        shares = max((device.contention.shares for device in self.devices_of(client)), default=0.0)
        share = self.share(client)
        return share / max(shares, share)
