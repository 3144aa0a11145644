"""Memory on devices, and its evictions, restores, prefetches and page faults over the links of devices.

Evicted bytes count as resident until the eviction has ended, and restored bytes from the end of the restore.
"""

from __future__ import annotations

from ..core.interface import events as ev
from ..wire.page import LEAVING, OUT
from .entities import EVICT, RESTORE, SimClient, SimDevice
from .event_queue import EventQueue
from .workloads.workload import Costs


class MemoryTransfers(EventQueue):
    """Evictions, restores and prefetches of simulated clients."""

    def __init__(self, costs: Costs) -> None:
        super().__init__()
        self.costs = costs
        self.bytes_out = self.bytes_in = 0
        self.bytes_faulted = 0  # part of `bytes_out` that page faults have moved

    def handle_event(self, event: ev.Event) -> None:
        raise NotImplementedError

    def report_memory(self, client: SimClient) -> None:
        self.handle_event(ev.MemoryReported(client.id, client.allocated, client.resident))

    # --- eviction

    def start_eviction(self, client: SimClient) -> None:
        """Begin to evict the memory above the client's resident target; a timer EVICT ends the eviction."""
        target = client.resident_target
        assert target is not None
        count = len(client.devices)
        client.evicting_bytes = (client.resident - target) // count * count
        part = client.evicting_bytes // count
        client.eviction_start = client.eviction_end = self.now
        for device in client.devices:
            begins = max(self.now, device.evict_link_free_at)
            device.evict_link_free_at = begins + part / device.link
            device.evicting_bytes += part
            client.eviction_start = max(client.eviction_start, begins)
            client.eviction_end = max(client.eviction_end, device.evict_link_free_at)
        self.schedule(client.eviction_end, EVICT, client)

    def finish_eviction(self, client: SimClient) -> None:
        """End a complete eviction."""
        self._end_eviction(client, client.evicting_bytes)

    def stop_eviction(self, client: SimClient) -> None:
        """Stop an eviction, because the client needs its memory again; the bytes moved so far are evicted."""
        if not client.evicting_bytes:
            return
        took = client.eviction_end - client.eviction_start
        gone = 1.0 if took <= 0 else max(0.0, (self.now - client.eviction_start) / took)
        count = len(client.devices)
        for device in client.devices:
            if device.evict_link_free_at == client.eviction_end:
                device.evict_link_free_at = max(self.now, client.eviction_start)
        self._end_eviction(client, int(client.evicting_bytes * gone) // count * count)
        client.timers[EVICT] = -1

    def _end_eviction(self, client: SimClient, gone: int) -> None:
        part = client.evicting_bytes // len(client.devices)
        for device in client.devices:
            device.evicting_bytes -= part
        client.evicting_bytes = 0
        self._remove_resident(client, gone)

    def _remove_resident(self, client: SimClient, gone: int) -> None:
        client.resident -= gone
        self.bytes_out += gone
        part = gone // len(client.devices)
        for device in client.devices:
            device.resident_bytes -= part

    def evict_when_out(self, client: SimClient) -> bool:
        """Begin to evict memory of a client without a turn if the client is above its target. Return whether it is."""
        if client.phase == OUT and client.resident_target is not None and client.resident_target < client.resident:
            self.start_eviction(client)
            return True
        return False

    # --- restore

    def missing_bytes(self, client: SimClient) -> int:
        room = sum(device.memory for device in client.devices)
        return min(client.allocated, room) - client.resident

    def start_restore(self, client: SimClient, begins: float) -> float:
        """Begin to restore the missing memory, and return the time at which all of it will be resident."""
        self.stop_restore(client)
        client.restoring_bytes = self.missing_bytes(client)
        client.restore_start = client.restore_end = begins
        if client.restoring_bytes <= 0:
            client.restoring_bytes = 0
            return begins
        part = client.restoring_bytes // len(client.devices)
        for device in client.devices:
            ends = max(begins, device.restore_link_free_at) + part / device.link
            short = device.resident_bytes + device.restoring_bytes + part - device.memory
            if short > device.evicting_bytes:
                self._stop_prefetches(device, client)
                short = device.resident_bytes + device.restoring_bytes + part - device.memory
            if short > 0:  # the last byte needs room that an eviction must free first
                ends = max(ends, device.evict_link_free_at)
            device.restore_link_free_at = ends
            device.restoring_bytes += part
            client.restore_end = max(client.restore_end, ends)
        return client.restore_end

    def room_available_at(self, client: SimClient) -> float:
        """Return the time at which the device has room for the restored memory.

        The time is in the future if an eviction is under way, or if page faults must move memory of other clients.
        """
        part = client.restoring_bytes // len(client.devices)
        time = self.now
        for device in client.devices:
            short = device.resident_bytes + part - device.memory
            if short > 0 and device.evicting_bytes:
                time = max(time, device.evict_link_free_at)
            elif short > 0:
                time = max(time, self.now + self._evict_by_faults(device, short, client) / self.costs.fault_bandwidth)
        return time

    def finish_restore(self, client: SimClient) -> None:
        """End a complete restore."""
        self._end_restore(client, client.restoring_bytes)

    def stop_restore(self, client: SimClient) -> None:
        """Stop a restore; the bytes moved so far are resident."""
        if client.restoring_bytes:
            took = client.restore_end - client.restore_start
            done = 1.0 if took <= 0 else min(1.0, max(0.0, (self.now - client.restore_start) / took))
            count = len(client.devices)
            for device in client.devices:
                if device.restore_link_free_at == client.restore_end:
                    device.restore_link_free_at = max(self.now, client.restore_start)
            self._end_restore(client, int(client.restoring_bytes * done) // count * count)
            client.timers[RESTORE] = -1

    def _end_restore(self, client: SimClient, restored: int) -> None:
        count = len(client.devices)
        for device in client.devices:
            device.restoring_bytes -= client.restoring_bytes // count
            short = device.resident_bytes + restored // count - device.memory
            if short > 0:
                self._evict_by_faults(device, short, client)
            device.resident_bytes += restored // count
        client.restoring_bytes = 0
        client.resident += restored
        self.bytes_in += restored

    def start_prefetch(self, client: SimClient) -> None:
        """Begin to restore memory in the background, as far as the devices have room now."""
        count = len(client.devices)
        room = min(device.memory - device.resident_bytes - device.restoring_bytes for device in client.devices) * count
        amount = min(self.missing_bytes(client), room) // count * count
        if client.phase != OUT or client.restoring_bytes or amount <= 0:
            return
        self.stop_eviction(client)
        client.restoring_bytes = amount
        client.restore_start = client.restore_end = self.now
        for device in client.devices:
            device.restore_link_free_at = max(self.now, device.restore_link_free_at) + amount // count / device.link
            device.restoring_bytes += amount // count
            client.restore_end = max(client.restore_end, device.restore_link_free_at)
        self.schedule(client.restore_end, RESTORE, client)

    def _stop_prefetches(self, device: SimDevice, user: SimClient) -> None:
        """Stop the prefetches of other clients, because a client with a turn needs the room."""
        for other in list(device.clients.values()):
            if other.restoring_bytes and other.phase == OUT and other is not user:
                self.stop_restore(other)
                self.report_memory(other)

    def _evict_by_faults(self, device: SimDevice, short: int, user: SimClient) -> int:
        """Evict memory by page faults as the driver does, from clients without a turn first. Return the bytes.

        The driver does so if the scheduler has not evicted enough.
        """
        taken = 0
        others = [one for one in device.clients.values() if one is not user and one.resident > 0]
        others.sort(key=lambda one: (one.phase not in (OUT, LEAVING), one.turn_entered_at))
        for other in others:
            if taken >= short:
                break
            self.stop_eviction(other)
            count = len(other.devices)
            amount = min(short - taken, other.resident // count)
            self._remove_resident(other, amount * count)
            self.bytes_faulted += amount * count
            taken += amount
            if other.phase == LEAVING:
                self.schedule(self.now, EVICT, other)
            self.report_memory(other)
        return max(taken, 0)

    def free_memory(self, client: SimClient) -> None:
        """Free all memory of a client, because its process has ended."""
        self.stop_eviction(client)
        self.stop_restore(client)
        for device in client.devices:
            device.resident_bytes -= client.resident // len(client.devices)
        client.resident = client.allocated = 0
        client.resident_target = None
