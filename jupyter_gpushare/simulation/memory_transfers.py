"""Memory on devices, and its evictions, restores, prefetches and page faults over the links of devices.

Evicted bytes count as resident until the eviction has ended, and restored bytes from the end of the restore.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..core.base.memory_use import MemoryUse
from ..core.interface import events as ev
from ..wire.page import CLOSING, IN, LEAVING, OUT
from .entities import EVICT, RESTORE, SimClient, SimDevice
from .event_queue import EventQueue
from .workloads.workload import Costs


class MemoryTransfers(EventQueue):
    """Evictions, restores and prefetches of simulated clients."""

    def __init__(self, costs: Costs) -> None:
        super().__init__()
        self.costs = costs
        self.overlap = False  # memory mode `swap`, in which no client can spill
        self.bytes_out = self.bytes_in = 0
        self.bytes_faulted = 0  # part of `bytes_out` that page faults have moved

    def handle_event(self, event: ev.Event) -> None:
        raise NotImplementedError

    def report_memory(self, client: SimClient) -> None:
        use = MemoryUse(client.allocated, unmade=client.unmade).part(max(1, len(client.devices)))
        plain, by_device = client.spec.plain, {}
        for device in client.devices:
            here = client.resident_on.get(device, 0)
            by_device[device.uuid] = replace(use, resident=here, unmovable=here if plain else 0)
        self.handle_event(
            ev.MemoryReported(
                client.id,
                client.allocated,
                client.resident,
                client.resident if plain else 0,
                unmade=client.unmade,
                by_device=by_device,
                can_spill=not self.overlap and not plain,
            )
        )

    # --- eviction

    def start_eviction(self, client: SimClient) -> None:
        """Begin to evict the memory above the client's resident targets; a timer EVICT ends the eviction."""
        client.evicting = {device: surplus for device in client.devices if (surplus := client.surplus_on(device))}
        client.eviction_start = client.eviction_end = self.now
        for device, part in client.evicting.items():
            begins = max(self.now, device.evict_link_free_at)
            device.evict_link_free_at = begins + part / device.link
            device.evicting_bytes += part
            client.eviction_start = max(client.eviction_start, begins)
            client.eviction_end = max(client.eviction_end, device.evict_link_free_at)
        self.schedule(client.eviction_end, EVICT, client)

    def finish_eviction(self, client: SimClient) -> None:
        """End a complete eviction."""
        self._end_eviction(client, 1.0)

    def stop_eviction(self, client: SimClient) -> None:
        """Stop an eviction, because the client needs its memory again; the bytes moved so far are evicted."""
        if not client.evicting:
            return
        took = client.eviction_end - client.eviction_start
        gone = 1.0 if took <= 0 else max(0.0, (self.now - client.eviction_start) / took)
        for device in client.evicting:
            if device.evict_link_free_at == client.eviction_end:
                device.evict_link_free_at = max(self.now, client.eviction_start)
        self._end_eviction(client, gone)
        client.timers[EVICT] = -1

    def _end_eviction(self, client: SimClient, gone: float) -> None:
        parts, client.evicting = client.evicting, {}
        for device, part in parts.items():
            device.evicting_bytes -= part
            self._remove_resident(client, device, math.ceil(part * gone))

    def _remove_resident(self, client: SimClient, device: SimDevice, gone: int) -> None:
        client.resident_on[device] -= gone
        device.resident_bytes -= gone
        self.bytes_out += gone

    @staticmethod
    def remove_all(client: SimClient, device: SimDevice, size: int) -> None:
        """Count the client's `size` bytes as gone from the device, also those of mode "plain"."""
        device.resident_bytes -= size
        device.plain_bytes -= size if client.spec.plain else 0

    def evict_when_out(self, client: SimClient) -> bool:
        """Begin to evict memory of a client without a turn if the client is above a target. Return whether it is."""
        if client.phase == OUT and client.has_surplus:
            self.start_eviction(client)
            return True
        return False

    # --- restore

    def missing_bytes(self, client: SimClient) -> int:
        return sum(self._missing_on(client, device) for device in client.devices)

    def _missing_on(self, client: SimClient, device: SimDevice) -> int:
        part = client.allocated // len(client.devices)
        limit = part if client.turn_limit is None else client.turn_limit
        here = client.resident_on.get(device, 0)
        room = device.memory - device.plain_bytes + (here if client.spec.plain else 0)
        return max(0, min(part, room, limit) - here)

    def adjust_to_limit(self, client: SimClient) -> None:
        """Begin to move memory of a client in its turn, because the turn limit has changed; its work goes on."""
        self.stop_eviction(client)
        self.stop_restore(client)
        if client.has_surplus:
            self.start_eviction(client)
        elif self.missing_bytes(client):
            self.schedule(self.start_restore(client, self.now), RESTORE, client)

    def spill_speed(self, client: SimClient) -> float:
        """Return the speed of the client's work, as a fraction of its speed with all memory on its devices."""
        is_beside_plain = any(device.plain_bytes for device in client.devices) and not client.spec.plain
        if client.turn_limit is None and not client.restoring and not is_beside_plain:
            return 1.0
        part = client.allocated // len(client.devices)
        return min(
            1.0 / (1.0 + max(0, part - client.resident_on.get(device, 0)) * self.costs.passes / device.link)
            for device in client.devices
        )

    def start_restore(self, client: SimClient, begins: float) -> float:
        """Begin to restore the missing memory, and return the time at which all of it will be resident."""
        self.stop_restore(client)
        client.restore_start = client.restore_end = begins
        missing = {device: self._missing_on(client, device) for device in client.devices}
        client.restoring = {device: part for device, part in missing.items() if part > 0}
        for device, part in client.restoring.items():
            ends = max(begins, device.restore_link_free_at) + self._copied_bytes(client, part) / device.link
            short = device.resident_bytes + device.restoring_bytes + part - device.memory
            if short > device.evicting_bytes:
                self._stop_prefetches(device, client)
                short = device.resident_bytes + device.restoring_bytes + part - device.memory
            if short > 0:  # the last byte needs room that an eviction must free first
                ends = max(ends, self._room_at(device, short))
            device.restore_link_free_at = ends
            device.restoring_bytes += part
            client.restore_end = max(client.restore_end, ends)
        return client.restore_end

    def room_available_at(self, client: SimClient) -> float:
        """Return the time at which each device has room for the memory that is restored to it.

        The time is in the future if an eviction is under way, or if page faults must move memory of other clients.
        """
        time = self.now
        for device, part in client.restoring.items():
            short = device.resident_bytes + part - device.memory
            if short > 0 and device.evicting_bytes:
                time = max(time, self._room_at(device, short))
            elif short > 0:
                time = max(time, self.now + self._evict_by_faults(device, short, client) / self.costs.fault_bandwidth)
        return time

    def _room_at(self, device: SimDevice, short: int) -> float:
        """Return when evictions have freed `short` bytes of the device, or all that they free."""
        return device.evict_link_free_at - max(0, device.evicting_bytes - short) / device.link

    def finish_restore(self, client: SimClient) -> None:
        """End a complete restore."""
        self._end_restore(client, 1.0)

    def stop_restore(self, client: SimClient) -> None:
        """Stop a restore; the bytes moved so far are resident."""
        if client.restoring:
            took = client.restore_end - client.restore_start
            done = 1.0 if took <= 0 else min(1.0, max(0.0, (self.now - client.restore_start) / took))
            for device in client.restoring:
                if device.restore_link_free_at == client.restore_end:
                    device.restore_link_free_at = max(self.now, client.restore_start)
            self._end_restore(client, done)
            client.timers[RESTORE] = -1

    def _end_restore(self, client: SimClient, done: float) -> None:
        parts, client.restoring = client.restoring, {}
        for device, part in parts.items():
            restored = int(part * done)
            made = int((part - self._copied_bytes(client, part)) * done)
            device.restoring_bytes -= part
            if device.resident_bytes + restored > device.memory:
                self._free_evicted(device)
            short = device.resident_bytes + restored - device.memory
            if short > 0:
                self._evict_by_faults(device, short, client)
            device.resident_bytes += restored
            device.plain_bytes += restored if client.spec.plain else 0
            client.resident_on[device] = client.resident_on.get(device, 0) + restored
            self.bytes_in += restored - made
            client.unmade -= made

    def _free_evicted(self, device: SimDevice) -> None:
        """Count the bytes as gone that evictions in progress have moved so far."""
        evicting = sorted(
            (one for one in device.clients.values() if one.evicting.get(device)), key=lambda one: one.eviction_end
        )
        for client in reversed(evicting):  # each gives the rest of its time on the link back
            self.stop_eviction(client)
        for client in evicting:
            self.start_eviction(client)
        for client in evicting:
            self.report_memory(client)

    def _copied_bytes(self, client: SimClient, part: int) -> int:
        """Return how many of `part` bytes that a restore brings to one device have contents to copy."""
        return max(0, part - client.unmade // len(client.devices))

    def start_prefetch(self, client: SimClient) -> None:
        """Begin to restore memory in the background, as far as the devices of the prefetch have room now.

        A client that is evicting finishes that first, and no more memory comes than the resident targets let stay.
        """
        if client.phase != OUT or client.evicting:
            return
        before = client.resident
        self.stop_restore(client)
        room = {device: self._room_of_prefetch(client, device) for device in client.prefetch_devices}
        client.restoring = {device: part for device, part in room.items() if part > 0}
        client.restore_start = client.restore_end = self.now
        for device, part in client.restoring.items():
            copied = self._copied_bytes(client, part)
            device.restore_link_free_at = max(self.now, device.restore_link_free_at) + copied / device.link
            device.restoring_bytes += part
            client.restore_end = max(client.restore_end, device.restore_link_free_at)
        if client.restoring:
            self.schedule(client.restore_end, RESTORE, client)
        if client.resident != before:
            self.report_memory(client)

    def _room_of_prefetch(self, client: SimClient, device: SimDevice) -> int:
        if device not in client.devices:
            return 0
        free = device.memory - device.resident_bytes - device.restoring_bytes
        room = min(self._missing_on(client, device), free)
        target = client.resident_targets.get(device)
        return room if target is None else min(room, target - client.resident_on.get(device, 0))

    def _stop_prefetches(self, device: SimDevice, user: SimClient) -> None:
        """Stop the prefetches of other clients, because a client with a turn needs the room."""
        for other in list(device.clients.values()):
            if other.restoring and other.phase == OUT and other is not user:
                self.stop_restore(other)
                self.report_memory(other)

    def _evict_by_faults(self, device: SimDevice, short: int, user: SimClient) -> int:
        """Evict memory by page faults as the driver does, from clients without a turn first. Return the bytes.

        The driver does so if the scheduler has not evicted enough.
        """
        taken = 0
        others = [one for one in device.clients.values() if one is not user and one.resident_on.get(device)]
        others = [one for one in others if not one.spec.plain]
        others.sort(key=lambda one: (one.phase not in (OUT, LEAVING), one.turn_entered_at))
        for other in others:
            if taken >= short:
                break
            self.stop_eviction(other)
            amount = min(short - taken, other.resident_on[device])
            self._remove_resident(other, device, amount)
            self.bytes_faulted += amount
            taken += amount
            if other.phase == LEAVING:
                self.schedule(self.now, EVICT, other)
            else:
                self.evict_when_out(other)
            self.report_memory(other)
        return max(taken, 0)

    def free_memory(self, client: SimClient) -> None:
        """Free all memory of a client, because its process has ended."""
        self.stop_eviction(client)
        self.stop_restore(client)
        for device, size in client.resident_on.items():
            self.remove_all(client, device, size)
        client.resident_on = {}
        client.allocated = client.released = client.unmade = 0

    # --- caches of frameworks

    def release_cache(self, client: SimClient) -> None:
        """Free the client's cache until `fill_cache`, at the end of a cell."""
        if client.released or not client.devices:
            return
        self.stop_eviction(client)
        self.stop_restore(client)
        part = client.spec.cache // len(client.devices)
        client.released = part * len(client.devices)
        client.allocated -= client.released
        for device in client.devices:
            freed = min(part, client.resident_on.get(device, 0))
            device.resident_bytes -= freed
            client.resident_on[device] = client.resident_on.get(device, 0) - freed
        if client.phase == LEAVING:
            self.schedule(self.now, EVICT, client)
        else:
            self.evict_when_out(client)
        self.report_memory(client)

    def fill_cache(self, client: SimClient) -> None:
        """Allocate the released cache again, whose bytes have no contents to restore."""
        part, client.released = client.released // len(client.devices), 0
        client.allocated += part * len(client.devices)
        for device in client.devices:
            made = 0
            if client.phase in (IN, CLOSING):
                short = device.resident_bytes + part - device.memory
                made = part if short <= 0 else max(0, part - short + self._evict_by_faults(device, short, client))
            device.resident_bytes += made
            client.resident_on[device] = client.resident_on.get(device, 0) + made
            client.unmade += part - made
        self.report_memory(client)
