"""What clients hold, as their pages tell it; what they may hold, and how long they wait, as ours tell them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from weakref import WeakKeyDictionary

from ..core import Scheduler
from ..core import events as ev
from ..core.memory import can_come, room
from ..core.outlook import expected_waits
from . import hostmemory
from .members import Member
from .ports import MAX_BYTES, ProcessPort

_PATIENCE = 15.0  # seconds for which memory that can leave may stay before what it is needed for is refused


class Levels:
    """Between the pages of all processes and the scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        members: Mapping[str, Member],
        feed: Callable[[ev.Event], None],
        now: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._members = members
        self._feed = feed
        self._now = now
        self._backing: int | None = None
        self._waits: dict[str, tuple[int, float]] = {}  # position and seconds, by client
        # By process that is short of room: how often its devices have changed, and since when they have not.
        self._unchanged: WeakKeyDictionary[ProcessPort, tuple[int, float]] = WeakKeyDictionary()

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

    def make_room(self, ports: Iterable[ProcessPort]) -> None:
        """For what these processes are short of, others leave; a process for which none can leave is refused.

        A request that comes meanwhile is another one: its own answer follows.
        """
        asks = [(port, number) for port in ports if (number := port.asks) is not None]
        if not asks:
            return
        members = list(self._members.values())
        for member in members:
            self.look(member)
        for member in members:  # now that it is known what all the others have
            self.look(member, asks=True)
        for port, number in asks:
            if port.number in self._scheduler.processes and self._is_hopeless(port):
                port.page.orders.no_room = number

    def _is_hopeless(self, port: ProcessPort) -> bool:
        """Return whether no more memory can leave for the process, or none has left for long.

        A process repeats a request that it makes while its turn ends, in its next turn.
        """
        client = self._scheduler.processes[port.number].client
        if client.grant is None or client.grant.draining:
            return False
        if not any(can_come(device, client, device.ahead) for device in client.books):
            return True
        changes = sum(device.changes for device in client.books)
        before, since = self._unchanged.get(port, (-1, 0.0))
        if before != changes or any(len(device.grants) > 1 for device in client.books):
            self._unchanged[port] = changes, self._now()
            return False
        return self._now() > since + _PATIENCE

    def look(self, member: Member, asks: bool = False) -> None:
        """Tell the scheduler what the client holds, if that is another than it knows. `asks`: also if it is short of
        more than before; what that means depends on what others hold.
        """
        held, short = member.held, sum(port.short for port in member.processes.values())
        client = self._scheduler.clients[member.client]
        if short > client.short and not asks:
            return
        if (client.held, client.short) != (held, short):
            self._feed(ev.MemoryHeld(member.client, held.allocated, held.resident, held.pinned, short))

    def measure(self, now: float) -> None:
        """Find out what host and devices can still back, and which client waits for how long."""
        held = [member.held for member in self._members.values()]
        allocated = sum(one.allocated for one in held)
        capacity = sum(device.info.memory for device in self._scheduler.devices.values())
        simulated = any(device.info.simulated for device in self._scheduler.devices.values())
        # The simulated driver keeps "device" memory on the host too.
        evicted = max(allocated - capacity, sum(one.allocated - one.resident for one in held))
        backing = hostmemory.backing(capacity, allocated, allocated if simulated else evicted)
        # Any number of devices may have been reported.
        self._backing = None if backing is None else min(backing, MAX_BYTES)
        self._waits = {
            client: (position, wait)
            for uuid in self._scheduler.devices
            for position, (client, wait) in enumerate(expected_waits(self._scheduler, uuid, now).items(), start=1)
        }

    def write(self, member: Member) -> None:
        """Write to the client's pages that this coordinator is alive, and what was measured last."""
        position, wait = self._waits.get(member.client, (0, 0.0))
        member.write_levels(int(self._now() * 1e9), self._backing, position, wait)
