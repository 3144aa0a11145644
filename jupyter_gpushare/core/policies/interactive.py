"""Short cells overtake long ones, although no length of a cell is known: the default.

The order of clients is that of a sum of two terms, both in seconds over the client's weight:

* The client's virtual clock (see `clocks`) makes clients fair to each other over time.
* The time that the work at hand has had, up to `LONGEST_WORK`, makes short cells fast: foreground-background
  scheduling, least attained service first (Rai et al., SIGMETRICS'03; for clusters Tiresias, Gu et al., NSDI'19).

Use of a device that no other client wants is free: the clock of a client that comes later begins where the first
client's is, and other work, such as the next cell, starts from zero. Only time for which other clients waited is
carried over to other work, less the pause before it. So cutting long work into many cells gains nothing. Time for which
another tenant waited is carried over to the work of all clients of the tenant, so that dividing work among many clients
gains nothing either.

A client with a smaller sum interrupts a turn, but not before the turn has paid for its switch, and the difference must
be as large as what the interrupting work has had already, up to a quantum. So new work starts at once, while two long
cells take turns of a quantum.

A tenant's clients that want the same device divide the tenant's part of it: five notebooks get no more than one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..model import Client, Device, Grant
from ..settings import Settings
from .base import Policy
from .clocks import VirtualClocks

LONGEST_WORK = 600.0  # seconds; all work that has had more is equally long


@dataclass
class _Work:
    """Time that a client has had for the work at hand, in seconds over its weight."""

    seconds: float = 0.0
    contended: float = 0.0  # of these, while another client waited


@dataclass
class _Tenant:
    """Time that all clients of a tenant have had on a device while another tenant wanted it, less pauses since."""

    contended: float = 0.0
    ended: float = 0.0  # when it was counted last


class Interactive(VirtualClocks):
    name: ClassVar[str] = "interactive"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._work: dict[str, _Work] = {}
        self._tenants: dict[tuple[str, str], _Tenant] = {}  # by device and tenant

    def weight(self, client: Client) -> float:
        """One for each client while all tenants have equally many; else less for the clients of large tenants."""
        rivals = max((device.rivals for device in client.books), key=lambda rivals: rivals.count, default=None)
        if rivals is None or not rivals.count:
            return 1.0
        return rivals.count / len(rivals.tenants) / max(1, rivals.of_tenant(client.tenant))

    def key(self, client: Client) -> float:
        return self.clock(client) + min(self._work_of(client).seconds, LONGEST_WORK)

    def until(self, grant: Grant, head: Client, patience: float) -> float:
        client = grant.client
        quantum = self.quantum(client)
        base = grant.starts + quantum
        weight = self.weight(client)
        ahead = self.key(head) + min(quantum / weight, self._work_of(head).seconds) - self.clock(client)
        work = self._work_of(client).seconds - grant.earlier_work / weight
        overtaken = grant.starts + weight * _time_to_advance(ahead, work)
        pays = grant.starts + max(self.settings.min_quantum, client.switching.cost)
        if overtaken < base:
            return max(overtaken, min(pays, base))
        return max(base, min(overtaken, patience))

    def begins_work(self, client: Client, pause: float, now: float) -> None:
        work = self._work_of(client)
        carried = max(0.0, work.contended - pause)
        for device in client.books:
            tenant = self._tenant_of(device, client)
            # While another client of the tenant wants the device, there is no pause.
            if device.rivals.of_tenant(client.tenant) == (client.counted_share is not None):
                tenant.contended = max(0.0, tenant.contended - (now - tenant.ended))
                tenant.ended = now
            carried = max(carried, tenant.contended)
        work.seconds = work.contended = carried

    def ran(self, client: Client, seconds: float, now: float) -> None:
        super().ran(client, seconds, now)
        for device in client.books:
            self._tenant_of(device, client).ended = now

    def worked(self, client: Client, seconds: float, contended: float) -> None:
        work, weight = self._work_of(client), self.weight(client)
        work.seconds += seconds / weight
        work.contended += contended / weight
        for device in client.books:
            if len(device.rivals.tenants) > 1:
                self._tenant_of(device, client).contended += contended / weight

    def work(self, client: Client) -> float:
        return self._work_of(client).seconds

    def forget(self, client: Client) -> None:
        super().forget(client)
        self._work.pop(client.id, None)

    def inherit(self, other: Policy) -> None:
        super().inherit(other)
        if isinstance(other, Interactive):
            self._work, self._tenants = other._work, other._tenants

    def _work_of(self, client: Client) -> _Work:
        work = self._work.get(client.id)
        if work is None:
            work = self._work[client.id] = _Work()
        return work

    def _tenant_of(self, device: Device, client: Client) -> _Tenant:
        key = (device.info.uuid, client.tenant)
        tenant = self._tenants.get(key)
        if tenant is None:
            tenant = self._tenants[key] = _Tenant()
        return tenant


def _time_to_advance(ahead: float, work: float) -> float:
    """Return the time, in seconds over a weight, in which the sum of a clock and the work at hand advances by `ahead`.

    `work`: what the work at hand has had before.
    """
    time = (ahead - min(work, LONGEST_WORK)) / 2.0  # both advance
    return time if work + time <= LONGEST_WORK else ahead - LONGEST_WORK
