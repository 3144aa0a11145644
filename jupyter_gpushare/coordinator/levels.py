"""What clients hold, as their pages tell it; what they may hold, and how long they wait, as ours tell them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..core import Scheduler
from ..core import events as ev
from ..core.memory import room
from ..core.outlook import expected_waits
from . import hostmemory
from .members import Member
from .ports import MAX_BYTES, ProcessPort


class Levels:
    """Between the pages of all processes and the scheduler."""

    def __init__(self, scheduler: Scheduler, members: Mapping[str, Member], feed: Callable[[ev.Event], None]) -> None:
        self._scheduler = scheduler
        self._members = members
        self._feed = feed

    def bring_back(self, member: Member) -> None:
        """As much of it as its devices have room for, `device_memory` being all that they have. Nothing beside a client
        of mode `plain`: it cannot ask anybody to leave again.
        """
        devices = [self._scheduler.devices[uuid] for uuid in self._scheduler.clients[member.client].devices]
        running = {grant.client.id for device in devices for grant in device.grants}
        wanted = member.comes_ahead and not any(
            other.is_plain for other in self._members.values() if other.client in running
        )
        rooms = [room(device) for device in devices] if wanted else []
        member.restore_ahead(min(rooms, default=0) * len(rooms))

    def make_room(self, port: ProcessPort) -> None:
        """The device is full for this process. Others are told to leave by now; if nobody can, it is told that."""
        for member in list(self._members.values()):
            self.look(member)
        if port.short and not any(self._leaves(member) for member in self._members.values()):
            port.page.orders.no_room = port.page.report.short_seq

    def _leaves(self, member: Member) -> bool:
        target = self._scheduler.residence.said(member.client)
        return target is not None and target < member.held.resident

    def look(self, member: Member) -> None:
        """Tell the scheduler what the client holds, if that is another than it knows."""
        held, short = member.held, sum(port.short for port in member.processes.values())
        client = self._scheduler.clients[member.client]
        if (client.held, client.short) != (held, short):
            self._feed(ev.MemoryHeld(member.client, held.allocated, held.resident, held.pinned, short))

    def write(self, now: float) -> None:
        """On all pages: that we are alive, what host and devices can still back, who waits for how long."""
        allocated = sum(member.allocated for member in self._members.values())
        capacity = sum(device.info.memory for device in self._scheduler.devices.values())
        simulated = any(device.info.simulated for device in self._scheduler.devices.values())
        # The simulated driver keeps "device" memory on the host too.
        held = [member.held for member in self._members.values()]
        evicted = max(allocated - capacity, sum(one.allocated - one.resident for one in held))
        backing = hostmemory.backing(capacity, allocated, allocated if simulated else evicted)
        if backing is not None:
            backing = min(backing, MAX_BYTES)  # any number of devices may have been reported
        waits: dict[str, tuple[int, float]] = {}
        for uuid in self._scheduler.devices:
            for position, (client, wait) in enumerate(expected_waits(self._scheduler, uuid, now).items(), start=1):
                waits[client] = (position, wait)
        for member in self._members.values():
            position, wait = waits.get(member.client, (0, 0.0))
            member.write_levels(int(now * 1e9), backing, position, wait)
