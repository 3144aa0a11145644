"""What may stay in device memory, what leaves before the next client needs the room, and what comes back ahead of time.

The order of the coming turns is known, so what is needed latest leaves (as Belady's rule has it): first what idle
clients have left there, the longest idle first, then those whose turn ends, who go to the end of the queue, then the
queue from its end. Only as much leaves as the next client needs; where all fits, nothing does. Where there is room, the
next client's memory comes back while it waits.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

from .commands import RestoreAhead, SetResident
from .model import Client, Device, Held


def stays(
    memory: int,
    held: Mapping[str, Held],
    running: Sequence[str],
    queue: Sequence[str],
    idle: Sequence[str],
    short: int = 0,
) -> dict[str, int]:
    """Bytes that each client may keep on a device of `memory` bytes; those not named may keep everything.

    `queue` has the next client first, `idle` the longest idle one first. `short`: bytes that the running clients asked
    for and could not get. What a running client may keep counts from the end of its turn on.
    """
    after = {client: one.resident for client, one in held.items()}

    def leave(shortage: int, clients: Iterable[str]) -> None:
        for client in clients:
            if shortage <= 0:
                return
            part = max(0, min(shortage, after[client] - held[client].pinned))
            after[client] -= part
            shortage -= part

    waiting = [client for client in queue if client not in running]
    if running:
        missing = sum(held[client].allocated - held[client].resident for client in running)
        # Their memory that is away is needed back; what they were refused is needed on top, whatever the figures say.
        leave(max(sum(after.values()) + missing - memory, short), [*idle, *reversed(waiting)])
        for client in running:
            after[client] = held[client].allocated
    if waiting:
        coming = waiting[0]
        missing = held[coming].allocated - after[coming]
        leave(sum(after.values()) + missing - memory, [*idle, *running, *reversed(waiting[1:])])
    # The running clients will have all of their memory there when their turn ends.
    most = {client: one.allocated if client in running else one.resident for client, one in held.items()}
    return {client: left for client, left in after.items() if left < most[client]}


def room(device: Device) -> int:
    """Bytes of the device beside all that is there, or is coming back for those who run."""
    away = sum(grant.client.part.allocated - grant.client.part.resident for grant in device.grants)
    return max(0, device.info.memory - device.resident - away)


def can_come(device: Device, client: Client, ahead: Client | None = None) -> bool:
    """Return whether all that `client` has allocated can be on the device, and memory of others there can leave it.

    What is on its way back counts as there: of clients that run, and of `ahead`, which waits.
    """
    stuck = device.pinned - client.part.pinned
    if client.part.allocated + stuck > device.info.memory:
        return False
    there = device.resident - device.pinned - client.part.movable
    coming = [grant.client for grant in device.grants] + ([ahead] if ahead else [])
    there += sum(other.part.away for other in coming if other is not client)
    return there > 0


class Residence:
    """Keeps what was last said to each client, and says what has changed."""

    def __init__(self, clients: dict[str, Client], devices: dict[str, Device]) -> None:
        self._clients = clients
        self._devices = devices
        self._plans: dict[str, dict[str, int]] = {}  # by device: bytes there that a client keeps
        self._seen: dict[str, tuple[object, ...]] = {}  # by device: what its plan followed from
        self._said: dict[str, int] = {}

    def settle(self, uuids: Iterable[str], now: float) -> Iterator[SetResident | RestoreAhead]:
        """Commands for what has changed on these devices."""
        for uuid in uuids:
            device = self._devices[uuid]
            head = device.line.head(now)
            seen = (device.changes, head, *device.grants)
            if self._seen.get(uuid) == seen:
                continue
            self._seen[uuid] = seen
            before = self._plans.get(uuid, {})
            plan = self._plan(device, head, now)
            if plan:
                self._plans[uuid] = plan
            elif before:
                del self._plans[uuid]
            for identity in dict.fromkeys((*plan, *before)):
                yield from self._say(identity)
            yield from self._bring_back(device, head)

    def said(self, client: str) -> int | None:
        """Bytes that the client may keep, by the last command; None: everything."""
        return self._said.get(client)

    def forget(self, client: Client) -> None:
        self._said.pop(client.id, None)

    def _say(self, identity: str) -> Iterator[SetResident]:
        client = self._clients.get(identity)
        if client is None:
            self._said.pop(identity, None)
            return
        parts = [plan[identity] for uuid in client.devices if identity in (plan := self._plans.get(uuid, {}))]
        wanted = None
        if parts:
            # A client of several devices has a part of its bytes on each, and one sum on its page.
            whole = client.held.allocated if client.grant else client.held.resident
            count = len(client.devices)
            wanted = whole - sum(max(0, whole // count - part) for part in parts)
        if self._said.get(identity) == wanted:
            return
        if wanted is None:
            del self._said[identity]
        else:
            self._said[identity] = wanted
        yield SetResident(identity, wanted)

    def _plan(self, device: Device, head: Client | None, now: float) -> dict[str, int]:
        running = [grant.client for grant in device.grants]
        short = sum(client.short for client in running)
        plan: dict[str, int] = {}
        if device.is_short:
            # No more clients are looked at than are needed to make room, however many there are.
            missing = sum(client.part.allocated - client.part.resident for client in running)
            if head and not head.grant:
                missing += head.part.allocated - head.part.resident
            wanted = max(device.resident + missing - device.info.memory, 0) + short
            idle = _enough(device.leavers.first_idle(), wanted)
            left = wanted - sum(client.part.resident - client.part.pinned for client in idle)
            last = [client for client in _enough(device.leavers.last_waiting(), left) if client not in (head, *running)]
            waiting = [*((head,) if head and not head.grant else ()), *reversed(last)]
            held = {client.id: client.part for client in (*running, *waiting, *idle)}
            plan = stays(
                device.info.memory - (device.resident - sum(part.resident for part in held.values())),
                held,
                [client.id for client in running],
                [client.id for client in waiting],
                [client.id for client in idle],
                short,
            )
        for client in device.bounded.values():
            leaves = client.suspended or client.evicted
            bound = 0 if leaves else client.quota.resident
            others = len(device.line) - (client in device.line)
            if bound is not None and (leaves or others):
                bound = max(bound // len(client.devices), client.part.pinned)
                plan[client.id] = min(plan.get(client.id, bound), bound)
        return plan

    def _bring_back(self, device: Device, head: Client | None) -> Iterator[RestoreAhead]:
        coming = head if head and not head.grant and device.grants and self._fits_too(device, head) else None
        before, device.ahead = device.ahead, coming
        if coming is before:
            return
        if before and before.id in self._clients:
            yield RestoreAhead(before.id, False)
        if coming:
            yield RestoreAhead(coming.id, True)

    def _fits_too(self, device: Device, head: Client) -> bool:
        """Whether there is room, beside all that is on the device or is coming back to it, for something of `head`."""
        return not head.evicted and head.part.allocated > head.part.resident and room(device) > 0


def _enough(clients: Generator[Client, None, None], wanted: int) -> list[Client]:
    """As many of them as have so many bytes that can leave."""
    found = []
    while wanted > 0 and (client := next(clients, None)) is not None:
        found.append(client)
        wanted -= client.part.resident - client.part.pinned
    clients.close()
    return found
