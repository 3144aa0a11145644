"""Memory on devices, and its way over their links.

Each direction of a link carries one transfer after the other. Bytes count as resident until they have left and from
when they have come, so that what is on a device never exceeds it.
"""

from __future__ import annotations

from ..core import events as ev
from ..wire.page import LEAVING, OUT
from .agenda import EVICT, RESTORE, Agenda, SimClient, SimDevice
from .workload import Costs


class Movement(Agenda):
    def __init__(self, costs: Costs) -> None:
        super().__init__()
        self.costs = costs
        self.bytes_out = self.bytes_in = 0
        self.faulted = 0  # of these, by page faults

    def feed(self, event: ev.Event) -> None:
        raise NotImplementedError

    def say_held(self, client: SimClient) -> None:
        self.feed(ev.MemoryHeld(client.id, client.allocated, client.resident))

    # --- out

    def evict(self, client: SimClient) -> None:
        """Begin to move what is beyond the client's target; an EVICT appointment is its end."""
        target = client.target
        assert target is not None
        count = len(client.devices)
        client.moving_out = (client.resident - target) // count * count
        part = client.moving_out // count
        client.out_began = client.out_ends = self.now
        for device in client.devices:
            begins = max(self.now, device.out_free)
            device.out_free = begins + part / device.link
            device.leaving += part
            client.out_began = max(client.out_began, begins)
            client.out_ends = max(client.out_ends, device.out_free)
        self.at(client.out_ends, EVICT, client)

    def evicted(self, client: SimClient) -> None:
        """All that was moving has left."""
        self._end_eviction(client, client.moving_out)

    def stop_eviction(self, client: SimClient) -> None:
        """It needs its memory again: what has left by now has left."""
        if not client.moving_out:
            return
        took = client.out_ends - client.out_began
        gone = 1.0 if took <= 0 else max(0.0, (self.now - client.out_began) / took)
        count = len(client.devices)
        for device in client.devices:
            if device.out_free == client.out_ends:
                device.out_free = max(self.now, client.out_began)
        self._end_eviction(client, int(client.moving_out * gone) // count * count)
        client.appointments[EVICT] = -1

    def _end_eviction(self, client: SimClient, gone: int) -> None:
        part = client.moving_out // len(client.devices)
        for device in client.devices:
            device.leaving -= part
        client.moving_out = 0
        self._leave(client, gone)

    def _leave(self, client: SimClient, gone: int) -> None:
        client.resident -= gone
        self.bytes_out += gone
        part = gone // len(client.devices)
        for device in client.devices:
            device.used -= part

    def leaves_when_idle(self, client: SimClient) -> bool:
        """Whether it is to give memory up now, having no turn; begins to, if so."""
        if client.phase == OUT and client.target is not None and client.target < client.resident:
            self.evict(client)
            return True
        return False

    # --- in

    def missing(self, client: SimClient) -> int:
        room = sum(device.memory for device in client.devices)
        return min(client.allocated, room) - client.resident

    def restore(self, client: SimClient, begins: float) -> float:
        """Begin to move back what is missing; returns when all of it will be there."""
        self.stop_restore(client)
        client.moving_in = self.missing(client)
        client.in_began = client.in_ends = begins
        if client.moving_in <= 0:
            client.moving_in = 0
            return begins
        part = client.moving_in // len(client.devices)
        for device in client.devices:
            ends = max(begins, device.in_free) + part / device.link
            short = device.used + device.arriving + part - device.memory
            if short > device.leaving:
                self._stop_background(device, client)
                short = device.used + device.arriving + part - device.memory
            if short > 0:  # the last byte cannot come before room for it has been made
                ends = max(ends, device.out_free)
            device.in_free = ends
            device.arriving += part
            client.in_ends = max(client.in_ends, ends)
        return client.in_ends

    def room_from(self, client: SimClient) -> float:
        """When there is room for what moves in: later than now if it must wait for those who are leaving, or if nobody
        was told to."""
        part = client.moving_in // len(client.devices)
        time = self.now
        for device in client.devices:
            short = device.used + part - device.memory
            if short > 0 and device.leaving:
                time = max(time, device.out_free)
            elif short > 0:
                time = max(time, self.now + self._take_by_faults(device, short, client) / self.costs.faults)
        return time

    def restored(self, client: SimClient) -> None:
        """All that was moving has come."""
        self._end_restore(client, client.moving_in)

    def stop_restore(self, client: SimClient) -> None:
        """What has come by now has come."""
        if client.moving_in:
            took = client.in_ends - client.in_began
            come = 1.0 if took <= 0 else min(1.0, max(0.0, (self.now - client.in_began) / took))
            count = len(client.devices)
            for device in client.devices:
                if device.in_free == client.in_ends:
                    device.in_free = max(self.now, client.in_began)
            self._end_restore(client, int(client.moving_in * come) // count * count)
            client.appointments[RESTORE] = -1

    def _end_restore(self, client: SimClient, come: int) -> None:
        count = len(client.devices)
        for device in client.devices:
            device.arriving -= client.moving_in // count
            short = device.used + come // count - device.memory
            if short > 0:
                self._take_by_faults(device, short, client)
            device.used += come // count
        client.moving_in = 0
        client.resident += come
        self.bytes_in += come

    def restore_ahead(self, client: SimClient) -> None:
        """In the background, as far as there is room now."""
        count = len(client.devices)
        room = min(device.memory - device.used - device.arriving for device in client.devices) * count
        amount = min(self.missing(client), room) // count * count
        if client.phase != OUT or client.moving_in or amount <= 0:
            return
        self.stop_eviction(client)
        client.moving_in = amount
        client.in_began = client.in_ends = self.now
        for device in client.devices:
            device.in_free = max(self.now, device.in_free) + amount // count / device.link
            device.arriving += amount // count
            client.in_ends = max(client.in_ends, device.in_free)
        self.at(client.in_ends, RESTORE, client)

    def _stop_background(self, device: SimDevice, user: SimClient) -> None:
        """Who has a turn comes before those whose memory is brought back ahead of theirs."""
        for other in list(device.present.values()):
            if other.moving_in and other.phase == OUT and other is not user:
                self.stop_restore(other)
                self.say_held(other)

    def _take_by_faults(self, device: SimDevice, short: int, user: SimClient) -> int:
        """Nobody was told to leave, so the driver makes room, page by page: from those who have no turn first."""
        taken = 0
        others = [one for one in device.present.values() if one is not user and one.resident > 0]
        others.sort(key=lambda one: (one.phase not in (OUT, LEAVING), one.turn_began))
        for other in others:
            if taken >= short:
                break
            self.stop_eviction(other)
            count = len(other.devices)
            amount = min(short - taken, other.resident // count)
            self._leave(other, amount * count)
            self.faulted += amount * count
            taken += amount
            if other.phase == LEAVING:
                self.at(self.now, EVICT, other)
            self.say_held(other)
        return max(taken, 0)

    def forget_memory(self, client: SimClient) -> None:
        """Its process has ended."""
        self.stop_eviction(client)
        self.stop_restore(client)
        for device in client.devices:
            device.used -= client.resident // len(client.devices)
        client.resident = client.allocated = 0
        client.target = None
