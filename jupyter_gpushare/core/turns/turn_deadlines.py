"""Until when a turn lasts, working or not: what quanta, holds, limits, classes and memory that comes back say of it."""

from __future__ import annotations

import math

from ..colocation.overrun_policy import overrun_deadline
from ..measure.switch_cost import DEFAULT_RESTORE_BYTES_PER_SECOND
from ..state.model import Client, Device, Grant
from .turn_close import TurnCloser


class TurnDeadlines:
    """Of the grants in `grants`; changes nothing there."""

    def __init__(self, grants: TurnCloser) -> None:
        self._grants = grants

    def next_check(self, grant: Grant) -> float | None:
        """When the grant is to be looked at again: it is to be closed then, or, while it drains, has become late."""
        if grant.is_draining:
            if not self._grants.has_contenders(grant):
                return None
            due = (
                self._grants.overrun_at(grant)
                if not grant.is_overrun
                else overrun_deadline(grant, self._grants.settings)
            )
            return None if due is None or due <= self._grants.now else due
        return self.close_at(grant, self.deadline(grant))

    def close_at(self, grant: Grant, deadline: float | None) -> float | None:
        """When it is to be closed: at its `deadline`, or some time after the end of a cell."""
        if grant.cells_ended_at is None:
            return deadline
        lingered = max(grant.cells_ended_at + self._grants.settings.cell_linger, grant.client.hold_until or 0.0)
        return lingered if deadline is None else min(deadline, lingered)

    def deadline(self, grant: Grant) -> float | None:
        """When the turn ends, working or not: somebody waits for it, or the client has had what it may have."""
        client = grant.client
        if client.suspended:
            return grant.granted_at
        ends = math.inf
        for uuid in grant.devices:
            ends = min(ends, self._device_deadline(grant, self._grants.devices[uuid]))
        if client.time_limit:
            ends = min(ends, client.time_limit.ends_at(grant.granted_at))
        return None if ends == math.inf else ends

    def _device_deadline(self, grant: Grant, device: Device) -> float:
        ends = self._limit_by_queue(grant, device)
        return (
            ends
            if device.lock_contended_since is None
            else min(ends, self._limit_by_other_coordinator(grant, device.lock_contended_since))
        )

    def _limit_by_other_coordinator(self, grant: Grant, contended_since: float) -> float:
        """Somebody waits for the lock of whom nothing is known but that: for a quantum."""
        client = grant.client
        ends = grant.work_starts_at + self._grants.policy.quantum(client)
        if client.hold_until is None:
            return ends
        held = min(client.hold_until, contended_since + self._grants.settings.max_hold)
        return held if grant.is_idle else max(ends, held)

    def _limit_by_queue(self, grant: Grant, device: Device) -> float:
        client = grant.client
        head = device.queue.head(self._grants.now)
        if head is client:  # for further devices
            head = next((one for one in device.queue.in_order(self._grants.now) if one is not client), None)
        if head is None:
            return math.inf
        if head.service_rank < client.service_rank:
            return grant.granted_at
        if head.service_rank > client.service_rank:
            # Offline ones have what online ones leave: also what they keep unused, when a hold is over.
            return math.inf if client.hold_until is None or not grant.is_idle else client.hold_until
        ends = self._grants.policy.turn_end(grant, head, device.queue.starvation_deadline(head.service_rank))
        ends = max(ends, self._next_memory_ready_at(device, head))
        if client.hold_until is None:
            return ends
        # However often it is asked for, nobody waits for longer because of it.
        waiting_since = device.queue.starvation_deadline(head.service_rank) - self._grants.settings.max_wait
        held = min(client.hold_until, waiting_since + self._grants.settings.max_hold)
        return held if grant.is_idle else max(ends, held)

    def _next_memory_ready_at(self, device: Device, head: Client) -> float:
        """Until when the memory of the next client comes back while others work: no sooner does it need the device."""
        missing = head.memory_per_device.allocated - head.memory_per_device.resident
        if missing <= 0 or head.waiting_since is None or not head.restores_memory or head.evicted:
            return -math.inf
        running = sum(grant.client.memory_per_device.allocated for grant in device.grants)
        if running + head.memory_per_device.allocated > device.info.memory:
            return -math.inf  # theirs has to leave before
        return head.waiting_since + max(2 * head.switch_cost.restore, missing / DEFAULT_RESTORE_BYTES_PER_SECOND)
