"""Turns of offline clients beside the memory of online clients: their beginning, and what is resident in them.

Where all memory does not fit, an offline client may run spilled: a turn limit keeps a part of its memory off the
device. The memory of online clients stays, so such a turn costs these clients no return. When the online clients pause,
and can bear the loss of one return, the limit ends within the turn. Memory of the online clients then leaves for that
of the offline client. An offline client that cannot spill waits until then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

from ..colocation.colocation_rules import takeover_at_of
from ..colocation.memory_fit import MemoryDemand, fits_completely, memory_demand, turn_limit_beside
from ..measure.estimates import MIN_RESTORE_BYTES_PER_SECOND
from ..residency.residency_plan import is_kept, kept_until
from ..state.model import Client, Device
from .grant_table import LIMIT_END, GrantTable
from .turn_close import TurnCloser

_MAX_ABOVE_LIMIT_SECONDS = 10.0  # until memory above a turn limit must have left, besides the time of its transfer


class _KeptClients:
    """Online clients of a device whose memory stays there (see `is_kept`), with what a decision needs of them."""

    def __init__(self, device: Device, now: float) -> None:
        self.clients = [client for client in device.clients.values() if is_kept(client, now)]
        self._device = device
        self._now = now

    @cached_property
    def demand(self) -> MemoryDemand:
        return memory_demand(self._device, self.clients)

    @cached_property
    def takeover_at(self) -> float:
        return takeover_at_of(self.clients, self._now)

    @cached_property
    def is_paused(self) -> bool:
        return not any(_is_at_work(one) for one in self.clients)

    def demand_beside(self, client: Client) -> MemoryDemand:
        """Return the demand of the kept clients, and of all others that run on the device beside `client`."""
        running = [grant.client for grant in self._device.grants]
        more = [one for one in running if one is not client and not is_kept(one, self._now)]
        return self.demand + memory_demand(self._device, more) if more else self.demand


class OfflineTurns:
    """Turn limits of offline clients in the table, and times at which their turns may begin."""

    def __init__(self, table: GrantTable, closer: TurnCloser) -> None:
        self._table = table
        self._closer = closer

    def update(self, device: Device, now: float) -> None:
        """Update the offline clients that wait for the device or run there with a turn limit."""
        waiting = [client for client in device.queue.offline_clients if client.grant is None]
        devices = {one for client in waiting for one in client.device_bindings}
        kept = {one: _KeptClients(one, now) for one in devices}
        for client in waiting:
            self._update_waiting(client, kept, now)
        ends = math.inf
        for client in list(device.limited_clients.values()):
            if client.grant:
                ends = min(ends, self._update_running(device, client, now))
            elif client.waiting_since is None or not client.service_rank:
                self._set_limit(client, None)
        self._table.deadlines.set((LIMIT_END, device.info.uuid), ends if now < ends < math.inf else None)

    def _update_waiting(self, client: Client, online: Mapping[Device, _KeptClients], now: float) -> None:
        """Defer the client while memory of `online` clients, by device, would leave for it, or let it spill."""
        full = {
            device: online[device]
            for device in client.device_bindings
            if not fits_completely(device, online[device].demand + memory_demand(device, [client]))
        }
        limit, takeover_at = None, -math.inf
        if full:
            takeover_at = max(kept.takeover_at for kept in full.values())
            device, kept = next(iter(full.items()))
            may_take_over = takeover_at <= now and kept.is_paused
            limit = None if may_take_over else turn_limit_beside(device, client, kept.demand)
            if limit is not None:
                takeover_at = -math.inf
                limit = turn_limit_beside(device, client, kept.demand_beside(client)) or limit
        self._set_limit(client, limit)
        if client.takeover_at != takeover_at:
            client.takeover_at = takeover_at
            self._table.requeue(client, now)
            self._table.mark_dirty(client)

    def _update_running(self, device: Device, client: Client, now: float) -> float:
        """Change the turn limit of the client, or end the limit. Return when the limit may end without an event.

        A client with a new process that cannot spill loses its turn.
        """
        if client.grant is None or client.grant.is_draining:
            return math.inf
        if not client.can_spill:
            self._closer.start_closing(client.grant, now)
            return math.inf
        kept = _KeptClients(device, now)
        others = kept.demand_beside(client)
        fits = fits_completely(device, others + memory_demand(device, [client]))
        if fits or (kept.is_paused and kept.takeover_at <= now) or not client.service_rank:
            self._set_limit(client, None)
            return math.inf
        limit = turn_limit_beside(device, client, others)
        if limit is not None:  # else the clients are separated
            self._set_limit(client, limit)
        ends = kept.takeover_at if kept.is_paused else math.inf
        ends = min(ends, self._check_limit(device, client, now))
        return min([ends, *(kept_until(one) for one in kept.clients if not _is_at_work(one))])

    def _check_limit(self, device: Device, client: Client, now: float) -> float:
        """End the turn of a client whose memory does not leave for its limit. Return when to check again.

        A process never moves preallocations, and no memory leaves for which the host has no room.
        """
        surplus = 0 if client.turn_limit is None else client.memory_on(device).resident - client.turn_limit
        if surplus <= 0:
            client.leave_by = None
            return math.inf
        if client.leave_by is None:
            client.leave_by = now + _MAX_ABOVE_LIMIT_SECONDS + surplus / MIN_RESTORE_BYTES_PER_SECOND
        if client.leave_by <= now and client.grant:
            client.leave_by, client.unspillable_bytes = None, client.memory_use.allocated
            self._closer.start_closing(client.grant, now)
            return math.inf
        return client.leave_by

    def _set_limit(self, client: Client, limit: int | None) -> None:
        if client.turn_limit == limit:
            return
        client.turn_limit, client.leave_by = limit, None
        for device in client.device_bindings:
            if limit is None:
                device.limited_clients.pop(client.id, None)
            else:
                device.limited_clients[client.id] = client
        self._table.update_turn_bound(client)


def _is_at_work(client: Client) -> bool:
    return client.grant is not None or client.waiting_since is not None
