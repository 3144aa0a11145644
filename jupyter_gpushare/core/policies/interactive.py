"""Short cells overtake long ones, without anybody knowing how long a cell is: the default.

Foreground-background scheduling (least attained service first; Rai et al., SIGMETRICS'03, and for clusters Tiresias, Gu
et al., NSDI'19), where attained service decays with time. So a cell that has run for less comes first, a notebook that
computed for an hour this morning is a newcomer again in the afternoon, and splitting work into many cells, or
pretending to begin new ones, gains nothing. Tenants are compared first, then their clients.

Whoever has attained less interrupts a turn, but not before the turn has paid for its switch.
"""

from __future__ import annotations

from typing import ClassVar

from ..model import Client, Grant
from ..settings import Settings
from ..usage import Usage
from .base import Policy


class Interactive(Policy):
    name: ClassVar[str] = "interactive"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._tenants: dict[str, Usage] = {}

    def group(self, client: Client) -> str:
        return client.tenant

    def group_key(self, group: str) -> float:
        return self._tenant(group).key

    def key(self, client: Client) -> float:
        return self.usage(client).key

    def until(self, grant: Grant, head: Client, patience: float) -> float:
        client = grant.client
        quantum = self.quantum(client)
        base = grant.starts + quantum
        if client.tenant == head.tenant:
            mine, other = self.usage(client), self.usage(head)
        else:
            mine, other = self._tenant(client.tenant), self._tenant(head.tenant)
        # From then on the head has attained less than this client, by a quantum.
        overtaken = grant.starts + other.at(grant.began) + quantum - mine.at(grant.began)
        pays = grant.starts + max(self.settings.min_quantum, client.switching.cost)
        if overtaken < base:
            return max(overtaken, min(pays, base))
        return max(base, min(overtaken, patience))

    def ran(self, client: Client, seconds: float, now: float) -> None:
        super().ran(client, seconds, now)
        self._tenant(client.tenant).add(seconds, now)

    def inherit(self, other: Policy) -> None:
        super().inherit(other)
        if isinstance(other, Interactive):
            self._tenants = other._tenants
            for usage in self._tenants.values():
                usage.remember(self.settings.memory_of_use)

    def _tenant(self, tenant: str) -> Usage:
        usage = self._tenants.get(tenant)
        if usage is None:
            usage = self._tenants[tenant] = Usage(self.settings.memory_of_use)
        return usage
