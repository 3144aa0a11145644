"""Policy of the simulator only: shortest remaining time first, as a yardstick for policies that know no lengths.

The policy knows the GPU time that is left of each client's cell (Schrage, 1968), and pays the same switching costs as
the policies of the core. A waiting client preempts a turn only if that saves more time than the switch costs. The
policy is no optimum: it knows neither later cells nor the gaps between GPU phases, and obeys `max_wait`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from ..core.interface.settings import Settings
from ..core.queueing.policies import Policy
from ..core.state.model import Client, Grant


class Clairvoyant(Policy):
    """Policy that gets the seconds left of a client's cell, by the client's name, from `remaining_seconds`."""

    name: ClassVar[str] = "clairvoyant"

    def __init__(self, settings: Settings, remaining_seconds: Callable[[str], float]) -> None:
        super().__init__(settings)
        self._remaining_seconds = remaining_seconds

    def key(self, client: Client) -> float:
        return self._remaining_seconds(client.id) + client.switch_cost.restore

    def turn_end(self, grant: Grant, head: Client, starvation_deadline: float) -> float:
        remaining = self._remaining_seconds(grant.client.id)
        of_head = self.key(head)
        if remaining > of_head + grant.client.switch_cost.total:
            return grant.work_starts_at
        quantum_end = super().turn_end(grant, head, starvation_deadline)
        if remaining == of_head == math.inf:
            return quantum_end
        return max(quantum_end, starvation_deadline)
