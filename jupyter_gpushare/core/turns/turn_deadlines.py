"""Deadlines of turns, as they follow from quanta, holds, limits, classes of service and restores of memory."""

from __future__ import annotations

import math

from ..colocation.colocation_rules import overrun_deadline
from ..colocation.memory_fit import fits_completely, memory_demand
from ..interface.settings import Settings
from ..measure.estimates import DEFAULT_RESTORE_BYTES_PER_SECOND
from ..residency.residency_plan import is_kept
from ..state.model import Client, Device, Grant
from .grant_table import GrantTable
from .turn_close import TurnCloser

_PAUSE_SECONDS = 0.05  # without work, after which the limits of colocated clients of a worse class end with the turn


class TurnDeadlines:
    """Deadlines of the grants in the table, which the deadlines do not change."""

    def __init__(self, table: GrantTable, closer: TurnCloser) -> None:
        self._table = table
        self._closer = closer

    def _settings_of(self, grant: Grant) -> Settings:
        return self._table.policies.settings_of(grant.client)

    def next_check(self, grant: Grant) -> float | None:
        """Return the time of the next check of the grant: to close it, or, while it drains, to act on its overrun."""
        if grant.is_draining:
            if not self._table.has_contenders(grant):
                return None
            due = (
                self._closer.overrun_at(grant)
                if not grant.is_overrun
                else overrun_deadline(grant, self._settings_of(grant))
            )
            return None if due is None or due <= self._table.now else due
        return self.close_at(grant, self.deadline(grant))

    def close_at(self, grant: Grant, deadline: float | None) -> float | None:
        """Return when to close the grant: at its `deadline`, or some time after the end of a cell or of work."""
        ends = math.inf if deadline is None else deadline
        hold_until = grant.client.hold_until or 0.0
        if grant.cells_ended_at is not None:
            ends = min(ends, max(grant.cells_ended_at + self._settings_of(grant).cell_linger, hold_until))
        if grant.paused_at is not None and grant.is_idle and self._table.ends_when_idle(grant):
            ends = min(ends, max(grant.paused_at + _PAUSE_SECONDS, hold_until))
        return None if ends == math.inf else ends

    def deadline(self, grant: Grant) -> float | None:
        """Return when the turn ends, with or without work; None: no client waits and no limit applies."""
        client = grant.client
        if client.suspended:
            return grant.granted_at
        ends = math.inf
        for uuid in grant.devices:
            ends = min(ends, self._device_deadline(grant, self._table.devices[uuid]))
        if client.time_limit:
            pays_at = grant.work_starts_at + grant.restore_seconds  # a turn that only restores memory would be lost
            ends = min(ends, max(client.time_limit.ends_at(grant.granted_at), pays_at))
        return None if ends == math.inf else ends

    def _device_deadline(self, grant: Grant, device: Device) -> float:
        ends = self._limit_by_queue(grant, device)
        return (
            ends
            if device.lock_contended_since is None
            else min(ends, self._limit_by_other_coordinator(grant, device, device.lock_contended_since))
        )

    def _limit_by_other_coordinator(self, grant: Grant, device: Device, contended_since: float) -> float:
        """Return a deadline of one quantum, because a client waits of which only its wait for the lock is known."""
        client = grant.client
        ends = grant.work_starts_at + device.policy.quantum(client)
        if client.hold_until is None:
            return ends
        hold_end = min(client.hold_until, contended_since + device.settings.max_hold)
        return hold_end if grant.is_idle else max(ends, hold_end)

    def _limit_by_queue(self, grant: Grant, device: Device) -> float:
        client = grant.client
        head = device.queue.head(self._table.now)
        if head is client:  # the client itself waits, for further devices
            head = next((one for one in device.queue.in_order(self._table.now) if one is not client), None)
        if head is None:
            return math.inf
        if head.service_rank < client.service_rank:
            return grant.granted_at
        if head.service_rank > client.service_rank:
            # Offline clients get what online clients leave, such as a device without work after the end of a hold.
            return math.inf if client.hold_until is None or not grant.is_idle else client.hold_until
        starves_at = device.queue.starvation_deadline(head.service_rank)
        ends = device.policy.turn_end(grant, head, starves_at)
        ends = max(ends, self._next_memory_ready_at(device, head))
        latest = min(ends + device.policy.quantum(client), starves_at)
        ends = max(ends, min(latest, self._next_burst_by(device, client, head)))
        if client.hold_until is None:
            return ends
        # Renewals of a hold do not add to the wait of other clients.
        waiting_since = device.queue.starvation_deadline(head.service_rank) - device.settings.max_wait
        hold_end = min(client.hold_until, waiting_since + device.settings.max_hold)
        return hold_end if grant.is_idle else max(ends, hold_end)

    def _next_memory_ready_at(self, device: Device, head: Client) -> float:
        """Return until when the next client's memory comes back while others work, since it needs the device then."""
        evicted = head.memory_on(device).evicted_bytes
        if evicted <= 0 or head.waiting_since is None or not head.restores_memory or head.evicted:
            return -math.inf
        running = sum(grant.client.memory_on(device).allocated for grant in device.grants)
        if running + head.memory_on(device).allocated > device.info.memory:
            return -math.inf  # memory of the running clients has to leave before
        return head.waiting_since + max(2 * head.switch_cost.restore, evicted / DEFAULT_RESTORE_BYTES_PER_SECOND)

    def _next_burst_by(self, device: Device, client: Client, head: Client) -> float:
        """Return by when an online client probably ends an offline turn; minus infinity: unknown, or of no use.

        The memory of the next offline client comes back during the work of that online client. A change of turns in the
        middle of a pause would leave the device without work until that memory is back.
        """
        if not client.service_rank or fits_completely(device, memory_demand(device, [client, head])):
            return -math.inf
        paused = (
            one
            for one in device.clients.values()
            if one.grant is None and one.waiting_since is None and is_kept(one, self._table.now)
        )
        return max((one.takeover_budget.pause_ends_by(one.last_turn_ended_at) for one in paused), default=-math.inf)
