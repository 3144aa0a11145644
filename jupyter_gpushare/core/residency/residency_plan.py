"""What may stay in device memory, what leaves before the next client needs the room, and what comes back ahead of time.

The order of the coming turns is known, so what is needed latest leaves (as Belady's rule has it): first what idle
clients have left there, the longest idle first, then those whose turn ends, who go to the end of the queue, then the
queue from its end. Only as much leaves as the next client needs; where all fits, nothing does. Where there is room, the
next client's memory comes back while it waits.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

from ..interface.commands import Prefetch, SetResident
from ..state.model import Client, Device, MemoryUse


def plan_residency(
    memory: int,
    memory_use: Mapping[str, MemoryUse],
    running: Sequence[str],
    queue: Sequence[str],
    idle: Sequence[str],
    unmet_bytes: int = 0,
) -> dict[str, int]:
    """Return the bytes that each client may keep on a device of `memory` bytes. A client without entry keeps all.

    `queue` has the next client first, `idle` the longest idle one first. `unmet_bytes`: bytes that the running clients
    asked for and could not get. The entry of a running client counts from the end of its turn.
    """
    after = {client: one.resident for client, one in memory_use.items()}

    def leave(shortage: int, clients: Iterable[str]) -> None:
        for client in clients:
            if shortage <= 0:
                return
            part = max(0, min(shortage, after[client] - memory_use[client].unmovable))
            after[client] -= part
            shortage -= part

    waiting = [client for client in queue if client not in running]
    if running:
        missing = sum(memory_use[client].allocated - memory_use[client].resident for client in running)
        # Their memory that is away is needed back; what they were refused is needed on top, whatever the figures say.
        leave(max(sum(after.values()) + missing - memory, unmet_bytes), [*idle, *reversed(waiting)])
        for client in running:
            after[client] = memory_use[client].allocated
    if waiting:
        coming = waiting[0]
        missing = memory_use[coming].allocated - after[coming]
        leave(sum(after.values()) + missing - memory, [*idle, *running, *reversed(waiting[1:])])
    # The running clients will have all of their memory there when their turn ends.
    most = {client: one.allocated if client in running else one.resident for client, one in memory_use.items()}
    return {client: left for client, left in after.items() if left < most[client]}


def free_bytes(device: Device) -> int:
    """Bytes of the device beside all that is there, or is coming back for those who run."""
    away = sum(
        grant.client.memory_per_device.allocated - grant.client.memory_per_device.resident for grant in device.grants
    )
    return max(0, device.info.memory - device.resident - away)


def can_make_resident(device: Device, client: Client, prefetching_client: Client | None = None) -> bool:
    """Return whether all that `client` has allocated can be on the device, and memory of others there can leave it.

    What is on its way back counts as there: of clients that run, and of `prefetching_client`, which waits.
    """
    stuck = device.unmovable - client.memory_per_device.unmovable
    if client.memory_per_device.allocated + stuck > device.info.memory:
        return False
    there = device.resident - device.unmovable - client.memory_per_device.movable
    coming = [grant.client for grant in device.grants] + ([prefetching_client] if prefetching_client else [])
    there += sum(other.memory_per_device.evicted_bytes for other in coming if other is not client)
    return there > 0


class ResidencyPlanner:
    """Keeps what was last said to each client, and says what has changed."""

    def __init__(self, clients: dict[str, Client], devices: dict[str, Device]) -> None:
        self._clients = clients
        self._devices = devices
        self._plans: dict[str, dict[str, int]] = {}  # by device: bytes there that a client keeps
        self._planned_for: dict[str, tuple[object, ...]] = {}  # by device: what its plan followed from
        self._targets: dict[str, int] = {}

    def plan(self, uuids: Iterable[str], now: float) -> Iterator[SetResident | Prefetch]:
        """Commands for what has changed on these devices."""
        for uuid in uuids:
            device = self._devices[uuid]
            head = device.queue.head(now)
            seen = (device.memory_version, head, *device.grants)
            if self._planned_for.get(uuid) == seen:
                continue
            self._planned_for[uuid] = seen
            before = self._plans.get(uuid, {})
            plan = self._plan_device(device, head, now)
            if plan:
                self._plans[uuid] = plan
            elif before:
                del self._plans[uuid]
            for identity in dict.fromkeys((*plan, *before)):
                yield from self._set_target(identity)
            yield from self._plan_prefetch(device, head)

    def target(self, client: str) -> int | None:
        """Bytes that the client may keep, by the last command; None: everything."""
        return self._targets.get(client)

    def remove(self, client: Client) -> None:
        self._targets.pop(client.id, None)

    def _set_target(self, identity: str) -> Iterator[SetResident]:
        client = self._clients.get(identity)
        if client is None:
            self._targets.pop(identity, None)
            return
        parts = [plan[identity] for uuid in client.devices if identity in (plan := self._plans.get(uuid, {}))]
        wanted = None
        if parts:
            # A client of several devices has a part of its bytes on each, and one sum on its page.
            whole = client.memory_use.allocated if client.grant else client.memory_use.resident
            count = len(client.devices)
            wanted = whole - sum(max(0, whole // count - part) for part in parts)
        if self._targets.get(identity) == wanted:
            return
        if wanted is None:
            del self._targets[identity]
        else:
            self._targets[identity] = wanted
        yield SetResident(identity, wanted)

    def _plan_device(self, device: Device, head: Client | None, now: float) -> dict[str, int]:
        running = [grant.client for grant in device.grants]
        short = sum(client.unmet_bytes for client in running)
        plan: dict[str, int] = {}
        if device.has_memory_shortage:
            # No more clients are looked at than are needed to make room, however many there are.
            missing = sum(client.memory_per_device.allocated - client.memory_per_device.resident for client in running)
            if head and not head.grant:
                missing += head.memory_per_device.allocated - head.memory_per_device.resident
            wanted = max(device.resident + missing - device.info.memory, 0) + short
            idle = _smallest_sufficient(device.eviction_candidates.idle_oldest_first(), wanted)
            left = wanted - sum(
                client.memory_per_device.resident - client.memory_per_device.unmovable for client in idle
            )
            last = [
                client
                for client in _smallest_sufficient(device.eviction_candidates.waiting_last_first(), left)
                if client not in (head, *running)
            ]
            waiting = [*((head,) if head and not head.grant else ()), *reversed(last)]
            held = {client.id: client.memory_per_device for client in (*running, *waiting, *idle)}
            plan = plan_residency(
                device.info.memory - (device.resident - sum(part.resident for part in held.values())),
                held,
                [client.id for client in running],
                [client.id for client in waiting],
                [client.id for client in idle],
                short,
            )
        for client in device.forced_evictions.values():
            leaves = client.suspended or client.evicted
            bound = 0 if leaves else client.quota.resident
            others = len(device.queue) - (client in device.queue)
            if bound is not None and (leaves or others):
                bound = max(bound // len(client.devices), client.memory_per_device.unmovable)
                plan[client.id] = min(plan.get(client.id, bound), bound)
        return plan

    def _plan_prefetch(self, device: Device, head: Client | None) -> Iterator[Prefetch]:
        coming = head if head and not head.grant and device.grants and self._fits_prefetch(device, head) else None
        before, device.prefetching_client = device.prefetching_client, coming
        if coming is before:
            return
        if before and before.id in self._clients:
            yield Prefetch(before.id, False)
        if coming:
            yield Prefetch(coming.id, True)

    def _fits_prefetch(self, device: Device, head: Client) -> bool:
        """Whether there is room, beside all that is on the device or is coming back to it, for something of `head`."""
        return (
            not head.evicted
            and head.memory_per_device.allocated > head.memory_per_device.resident
            and free_bytes(device) > 0
        )


def _smallest_sufficient(clients: Generator[Client, None, None], wanted: int) -> list[Client]:
    """As many of them as have so many bytes that can leave."""
    found = []
    while wanted > 0 and (client := next(clients, None)) is not None:
        found.append(client)
        wanted -= client.memory_per_device.resident - client.memory_per_device.unmovable
    clients.close()
    return found
