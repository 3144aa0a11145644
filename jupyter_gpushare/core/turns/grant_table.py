"""Table of waiting clients and grants, in which each method is one consistent change.

A change updates what depends on it: contenders, memory use, eviction order, charged time and pending permits.
`TurnScheduler` decides on the changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from ..base.deadline_queue import DeadlineQueue
from ..base.memory_use import NO_MEMORY, MemoryUse
from ..interface.commands import Command, SetTurnLimit, UpdateQuota
from ..interface.settings import Settings
from ..measure.time_limit import TimeLimitBucket
from ..queueing.device_policies import DevicePolicies
from ..state.model import Client, Device, Grant
from .permits import Permits

GRANT_DEADLINE, PERMIT_CHECK, YIELD_END, NEXT_READY, LIMIT_END = "grant", "permit", "yield", "queue", "limit"
NEW_WORK_PAUSE_SECONDS = 1.0  # time without the device after which a program without cells begins other work
FIRST_TURN = 1 << 32  # GPUSHARE_FIRST_TURN of page.h
_EQUAL_PARTS: Mapping[str, MemoryUse] = MappingProxyType({})


class GrantTable:
    """The queues and the grants of all devices. Commands go to `commands`, and turn numbers begin at `first_turn`."""

    def __init__(
        self, settings: Settings, devices: dict[str, Device], commands: list[Command], first_turn: int = FIRST_TURN
    ) -> None:
        self.policies = DevicePolicies(settings, devices)
        self.now = -math.inf  # the time of the event that is being handled
        self.devices = devices
        self.waiting: dict[str, Client] = {}
        self.grants: dict[str, Grant] = {}
        self.permits = Permits()
        self.deadlines = DeadlineQueue()
        self.dirty_devices: dict[str, None] = {}  # devices that the scheduler has to review
        self.clients_to_review: dict[str, Client] = {}  # clients that may have begun, or ceased, to be idle
        self.commands = commands
        self._queue_sequence = 0
        self._last_turn = first_turn - 1

    def mark_dirty(self, client: Client) -> None:
        self.clients_to_review[client.id] = client
        self.permits.mark_dirty(client)
        for uuid in dict.fromkeys((*client.devices, *(client.grant.devices if client.grant else ()))):
            self.mark_device_dirty(self.devices[uuid])

    def start_work(self, client: Client, now: float) -> None:
        """Begin other work of the client, because its first open cell has started."""
        grant = client.grant
        if grant:
            grant.earlier_work = now - grant.granted_at - self._contended_seconds(grant, now)
        expected = client.cell_run.expected if client.cell_run else None
        seconds = expected.seconds if expected else None
        for policy in self.policies.policies_of(client):
            policy.on_new_work(client, 0.0 if grant else now - client.last_turn_ended_at, now, seconds)
        self.requeue(client, now)

    def apply_quota(self, client: Client, now: float) -> None:
        """Apply the limit and the share of the client, whose quota or policy has changed."""
        policy = self.policies.policy_of(client)
        limit = min((device.policy.limit(client) for device in client.device_bindings), default=policy.limit(client))
        if limit >= 1.0:
            client.time_limit = None
        elif client.time_limit is None or client.time_limit.limit != limit:
            timing = (policy.quantum(client), client.switch_cost.total)
            if client.grant and client.time_limit:
                client.time_limit.charge(now - client.grant.granted_at, now)
            client.time_limit = TimeLimitBucket(limit, *timing, now, client.time_limit)
        self.update_contention(client)
        self.requeue(client, now)
        self.mark_dirty(client)

    # --- the queue

    def enter_queue(self, client: Client, now: float) -> None:
        if client.waiting_since is not None or client.suspended:
            return
        client.waiting_since = now
        self.waiting[client.id] = client
        self.update_contention(client)
        self._queue_sequence += 1
        client.waits += 1
        if client.grant is None:
            client.demand.add_pause(now - max(client.last_turn_ended_at, client.cells_since))
            if -math.inf < client.last_turn_ended_at < now:
                client.takeover_budget.add_pause(now - client.last_turn_ended_at)
            if not client.cells and now - client.last_turn_ended_at >= NEW_WORK_PAUSE_SECONDS:
                for policy in self.policies.policies_of(client):
                    policy.on_new_work(client, now - client.last_turn_ended_at, now)
        for policy in self.policies.policies_of(client):
            policy.on_wait(client, now)
        if client.time_limit:
            client.time_limit.start_wait(now)
        client.queue_sequence = self._queue_sequence
        for device in client.turn_bindings:
            device.queue.add(client, now)
            self._update_eviction_candidate(client, device)
        self.mark_dirty(client)

    def leave_queue(self, client: Client, now: float) -> None:
        if client.waiting_since is None:
            return
        client.wait_seconds += now - client.waiting_since
        client.waiting_since = None
        client.is_short_of_room = False
        client.takeover_at = -math.inf
        self.withdraw_permit(client)
        del self.waiting[client.id]
        for device in client.device_bindings:
            self._remove_from_queue(client, device)
            self._update_eviction_candidate(client, device)
        self.update_contention(client)
        self.mark_dirty(client)

    def _remove_from_queue(self, client: Client, device: Device) -> None:
        device.queue.remove(client)
        if not device.queue:  # no permit shows any more whether another coordinator's client has the device
            device.taken_by_other_since = None

    def leave_queue_if_satisfied(self, client: Client, now: float) -> None:
        """Remove the client from the queue if no thread of it waits any more."""
        if not (client.needs_more_devices if client.grant else client.is_waiting_at_gate):
            self.leave_queue(client, now)

    def requeue(self, client: Client, now: float) -> None:
        """Move the client to the place in its queues that its key now gives."""
        for device in client.turn_bindings if client.waiting_since is not None else ():
            device.queue.add(client, now)
            self._update_eviction_candidate(client, device)

    def set_devices(self, client: Client, devices: tuple[str, ...], now: float) -> None:
        """Make `devices` the devices of the client."""
        self.mark_dirty(client)
        settings = self.policies.settings_of(client)
        memory_use, by_device = client.memory_use, client.memory_by_device
        self.set_memory_use(client, NO_MEMORY)
        self._remove_from_contention(client)
        for device in client.device_bindings:
            self._remove_from_queue(client, device)
            device.eviction_candidates.remove_idle(client)
            del device.clients[client.id]
            device.forced_evictions.pop(client.id, None)
            device.limited_clients.pop(client.id, None)
        client.turn_limit = None
        client.is_short_of_room = False  # the scheduler looks for room on the new devices
        client.devices = devices
        client.device_bindings = tuple(self.devices[uuid] for uuid in devices)
        for device in client.device_bindings:
            device.clients[client.id] = client
        # Memory stays on its device, whatever devices the client uses besides.
        self.set_memory_use(client, memory_use, by_device if by_device.keys() <= set(devices) else _EQUAL_PARTS)
        self.update_forced_eviction(client)
        self.apply_quota(client, now)
        if devices and self.policies.settings_of(client) != settings:
            self.commands.append(UpdateQuota(client.id))  # its pages have the times of its devices

    def set_memory_use(
        self, client: Client, memory_use: MemoryUse, by_device: Mapping[str, MemoryUse] = _EQUAL_PARTS
    ) -> None:
        """Set the memory of the client, in all and on its devices.

        Without `by_device` the memory counts in equal parts on its devices.
        """
        before = client.memory_by_device
        after = {uuid: part for uuid, part in by_device.items() if uuid in client.devices}
        if not after:
            after = dict.fromkeys(client.devices, memory_use.part(max(1, len(client.devices))))
        client.memory_use, client.memory_by_device = memory_use, after
        for device in client.device_bindings:
            old, new = before.get(device.info.uuid, NO_MEMORY), client.memory_on(device)
            if old == new:
                continue
            device.allocated += new.allocated - old.allocated
            device.resident += new.resident - old.resident
            device.unmovable += new.unmovable - old.unmovable
            device.unbacked += new.unbacked - old.unbacked
            device.context += new.context - old.context
            device.memory_version += 1
            if new.resident and not old.resident:
                self._update_eviction_candidate(client, device)
        self.update_turn_bound(client)
        allocated = memory_use.allocated - client.unmet_bytes
        client.peak_bytes = (client.peak_bytes[0], max(client.peak_bytes[1], allocated))
        if client.cell_run:
            client.cell_run.peak_bytes = max(client.cell_run.peak_bytes, allocated - memory_use.context)

    def _update_eviction_candidate(self, client: Client, device: Device) -> None:
        """Enter the client in the eviction order of the device, as a waiting or an idle client."""
        if client in device.queue:
            device.eviction_candidates.add_waiting(client, device.policy.key(client))
        elif client.grant is None:
            device.eviction_candidates.add_idle(client)

    def update_forced_eviction(self, client: Client) -> None:
        """Note whether the client's memory leaves its devices in spite of room."""
        for device in client.device_bindings:
            device.memory_version += 1
            if client.suspended or client.evicted or client.quota.resident is not None:
                device.forced_evictions[client.id] = client
            else:
                device.forced_evictions.pop(client.id, None)
        self.update_turn_bound(client)

    def update_turn_bound(self, client: Client) -> None:
        """Send the bytes that the client may have on its device in its turn, if they have changed."""
        bound = next((client.turn_bound_on(device) for device in client.device_bindings), None)
        if client.turn_bound != bound:
            client.turn_bound = bound
            for device in client.device_bindings:
                device.memory_version += 1
            self.commands.append(SetTurnLimit(client.id, bound))

    def set_evicted(self, client: Client, evicted: bool) -> None:
        if client.evicted != evicted:
            client.evicted = evicted
            self.update_forced_eviction(client)

    def update_contention(self, client: Client) -> None:
        """Count the client as a contender of its devices exactly if it waits or runs."""
        self._remove_from_contention(client)
        if client.waiting_since is None and client.grant is None:
            return
        client.contending_shares = tuple(device.policy.share(client) for device in client.device_bindings)
        for device, share in zip(client.device_bindings, client.contending_shares, strict=True):
            device.contention.add(client.user, share)

    def _remove_from_contention(self, client: Client) -> None:
        if client.contending_shares is None:
            return
        for device, share in zip(client.device_bindings, client.contending_shares, strict=True):
            device.contention.remove(client.user, share)
        client.contending_shares = None

    def has_contenders(self, grant: Grant) -> bool:
        """Return whether a client waits that could run if the turn were over."""
        devices = [self.devices[uuid] for uuid in grant.devices]
        return any(
            device.lock_contended_since is not None or device.queue.has_others(grant.client) for device in devices
        )

    def ends_when_idle(self, grant: Grant) -> bool:
        """Return whether the turn ends in a pause of its client, for clients that wait or whose launches are limited.

        Clients of a worse class that share the device have limits as long as the turn lasts. Such clients also wait
        for a pause that begins when its client can bear the loss.
        """
        devices = [self.devices[uuid] for uuid in grant.devices]
        rank = grant.client.service_rank
        return (
            self.has_contenders(grant)
            or any(other.client.service_rank > rank for device in devices for other in device.grants)
            or any(
                client.takeover_at > self.now and client.service_rank > rank
                for device in devices
                for client in device.queue.offline_clients
            )
        )

    def set_lock_contended(self, device: Device, contended: bool, now: float) -> None:
        """Note whether a client unknown to this coordinator waits for the device."""
        if not contended:
            device.lock_contended_since = device.yielded_until = None  # such a client runs now, or waits no more
        elif device.lock_contended_since is None:
            device.lock_contended_since = now
        self.mark_device_dirty(device)

    def mark_device_dirty(self, device: Device) -> None:
        """Mark the device, and the permits of its running and next clients, for review."""
        self.dirty_devices[device.info.uuid] = None
        for grant in device.grants:
            self.permits.mark_dirty(grant.client)
        if device.next_client:
            self.permits.mark_dirty(device.next_client)

    # --- permits to begin

    def withdraw_permit(self, client: Client) -> None:
        """Withdraw the pending permit of the client, which is no longer the next client."""
        if client.pending_permit is None:
            return
        for uuid in client.pending_permit.devices:
            device = self.devices[uuid]
            if device.next_client is client:
                device.next_client = None
                self.mark_device_dirty(device)
        client.pending_permit = None
        self.permits.mark_dirty(client)
        self.deadlines.set((PERMIT_CHECK, client.id), None)

    def new_turn_number(self) -> int:
        """Return a number that no turn has had."""
        self._last_turn += 1
        return self._last_turn

    # --- grants

    def add_grant(self, client: Client, turn: int, devices: tuple[str, ...], granted_at: float) -> Grant:
        grant = client.grant = Grant(client, turn, (), granted_at)
        self.grants[client.id] = grant
        client.turn_count += 1
        self.set_evicted(client, False)
        self.update_contention(client)
        self.add_devices(grant, devices, granted_at)
        self.mark_dirty(client)
        return grant

    def add_devices(self, grant: Grant, devices: tuple[str, ...], since: float) -> None:
        """Make `devices`, which the client has had since `since`, part of the grant."""
        for uuid in dict.fromkeys(uuid for uuid in devices if uuid not in grant.devices):
            self.devices[uuid].grants.append(grant)
            grant.accounted_until[uuid] = since
        grant.devices = tuple(sorted({*grant.devices, *devices}))
        self.mark_dirty(grant.client)

    def charge_time(self, grant: Grant, now: float) -> None:
        """Add the time of the grant since the last call to the client's sums."""
        client, seconds = grant.client, now - grant.granted_at
        client.gpu_seconds += seconds
        client.granted_seconds = client.granted_seconds_at(now)
        for policy in self.policies.policies_of(client):
            policy.add_work(client, seconds - grant.earlier_work, self._contended_seconds(grant, now))
        grant.accounted_until = dict.fromkeys(grant.accounted_until, now)
        client.usage.add(seconds, now)
        for policy in self.policies.policies_of(client):
            policy.charge(client, seconds, now)
        if client.time_limit:
            client.time_limit.charge(seconds, now)
        grant.granted_at = now
        grant.restore_seconds = grant.earlier_work = 0.0

    def _contended_seconds(self, grant: Grant, now: float) -> float:
        """Return for how long another client has waited for one of the grant's devices, since `grant.granted_at`."""
        since = min(
            (self.devices[uuid].queue.waiting_since(grant.client.service_rank) for uuid in grant.devices), default=now
        )
        return max(0.0, now - max(since, grant.granted_at))

    def remove_grant(self, grant: Grant) -> None:
        self.mark_dirty(grant.client)
        self.withdraw_permit(grant.client)  # devices that this turn was to get, the next turn gets
        self.permits.require_new_epoch(grant.client)
        grant.client.grant = None
        del self.grants[grant.client.id]
        self.deadlines.set((GRANT_DEADLINE, grant.client.id), None)
        for uuid in grant.devices:
            device = self.devices[uuid]
            device.grants.remove(grant)
            device.free_since = self.now
            device.last_client = grant.client
            if grant.client.service_rank and grant.client.turn_limit is None:
                device.offline_until = self.now
            self._update_eviction_candidate(grant.client, device)
        self.update_contention(grant.client)
