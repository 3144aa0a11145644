"""Plan of the memory that stays on a device, leaves it, or is restored ahead of time, and the commands for changes.

The order of the coming turns is known, so the memory that is needed latest leaves, by Belady's rule. The memory of
idle clients leaves first, beginning with the longest idle client. The memory of the clients whose turn ends leaves
next, because these clients go to the end of the queue. The memory of the queue leaves last, beginning at its end.
The memory of offline clients leaves before that of online clients that have had a turn in the last minute (TGS).
Only as much leaves as the running clients and the next client need. The memory of suspended or evicted clients leaves
even if there is room. Memory above the quota `resident` leaves while other clients wait. If there is room, the next
client's memory is restored while the client waits.

`ResidencyPlanner` keeps the last plan of each device, and yields SetResident and Prefetch for the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence

from ..base.memory_use import MemoryUse
from ..interface.commands import Prefetch, SetResident
from ..state.model import Client, Device

_KEPT_SECONDS = 60.0  # after its last turn, for which offline memory leaves before that of an online client


def plan_residency(
    memory: int,
    memory_use: Mapping[str, MemoryUse],
    running: Sequence[str],
    queue: Sequence[str],
    idle: Sequence[str],
    unmet_bytes: int = 0,
    kept: Collection[str] = (),
) -> dict[str, int]:
    """Return the bytes that each client may keep on a device of `memory` bytes. A client without entry keeps all.

    `queue` has the next client first, `idle` the longest idle client first. `unmet_bytes`: bytes that the running
    clients asked for and could not get. `kept`: clients whose memory leaves after that of all others. The entry of a
    running client counts from the end of its turn.
    """
    after = {client: one.resident for client, one in memory_use.items()}

    def leave(shortage: int, clients: Iterable[str]) -> None:
        for client in sorted(clients, key=kept.__contains__):
            if shortage <= 0:
                return
            size = max(0, min(shortage, after[client] - memory_use[client].unmovable))
            after[client] -= size
            shortage -= size

    waiting = [client for client in queue if client not in running]
    if running:
        missing = sum(memory_use[client].missing_bytes for client in running)
        # The running clients need their evicted memory, and `unmet_bytes` even if the figures show enough room.
        leave(max(sum(after.values()) + missing - memory, unmet_bytes), [*idle, *reversed(waiting)])
        for client in running:
            after[client] = memory_use[client].allocated
    if waiting:
        coming = waiting[0]
        missing = memory_use[coming].allocated - after[coming]
        leave(sum(after.values()) + missing - memory, [*idle, *running, *reversed(waiting[1:])])
    # The running clients will have all of their memory on the device when their turn ends.
    maximum = {client: one.allocated if client in running else one.resident for client, one in memory_use.items()}
    return {client: left for client, left in after.items() if left < maximum[client]}


def free_bytes(device: Device) -> int:
    """Return the bytes of the device without all memory that is there or is restored for running clients."""
    missing = sum(grant.client.missing_on(device) for grant in device.grants)
    return max(0, device.info.memory - device.resident - missing)


def can_make_resident(
    device: Device, client: Client, prefetching_client: Client | None = None, counts_unbacked: bool = True
) -> bool:
    """Return whether the device can hold all memory of `client`, and some memory of other clients can leave the device.

    Memory that is being restored counts as resident: that of running clients, and of the waiting `prefetching_client`.
    Without `counts_unbacked`, unbacked memory counts as movable, because the host may have memory for it soon.
    """
    others_unmovable = device.unmovable - client.memory_on(device).unmovable
    if not counts_unbacked:
        others_unmovable -= device.unbacked - client.memory_on(device).unbacked
    if client.memory_on(device).allocated + others_unmovable > device.info.memory:
        return False
    evictable = device.resident - others_unmovable - client.memory_on(device).resident
    coming = [grant.client for grant in device.grants] + ([prefetching_client] if prefetching_client else [])
    evictable += sum(other.missing_on(device) for other in coming if other is not client)
    return evictable > 0


def is_short_of_room(device: Device, client: Client, counts_unbacked: bool = True) -> bool:
    """Return whether memory of other clients that cannot leave the device takes the room of the client's memory.

    In a turn of the client, the driver would evict unbacked memory, at the cost of its owner's process. A client that
    needs all of its memory on the device could do nothing in a turn beside unmovable memory of any kind. Without
    `counts_unbacked`, unbacked memory counts as movable.
    """
    if client.moving_to and not client.is_returning:
        return False  # the turn is for the move, and restores no memory
    own = client.memory_on(device)
    others_unbacked, others_unmovable = device.unbacked - own.unbacked, device.unmovable - own.unmovable
    others_context = device.context - own.context
    if not counts_unbacked:
        others_unmovable, others_unbacked = others_unmovable - others_unbacked, 0
    needs_all = not client.can_spill and own.missing_bytes > 0
    blocking = others_unmovable - others_context if needs_all else others_unbacked
    return blocking > 0 and min(own.allocated, device.info.memory) + others_unmovable > device.info.memory


def has_no_room_in_turn(device: Device, client: Client) -> bool:
    """Return whether the client's turn has found the device full of memory that cannot leave."""
    return client.memory_on(device).unmet > 0 and is_short_of_room(device, client)


def blocking_clients(client: Client) -> list[tuple[Client, int]]:
    """Return the clients whose memory takes the room of `client`, with the bytes that cannot leave, the most first."""
    found: dict[str, tuple[Client, int]] = {}
    for device in client.device_bindings:
        for other in device.clients.values():
            use = other.memory_on(device)
            size = use.unbacked if client.can_spill else use.unmovable - use.context
            if other is not client and size:
                found[other.id] = other, size + found.get(other.id, (other, 0))[1]
    return sorted(found.values(), key=lambda one: one[1], reverse=True)


class ResidencyPlanner:
    """Planner that keeps the last resident target of each client on each device, and returns the changes."""

    def __init__(self, clients: dict[str, Client], devices: dict[str, Device]) -> None:
        self._clients = clients
        self._devices = devices
        self._plans: dict[str, dict[str, int]] = {}  # by device: bytes there that a client keeps
        self._planned_for: dict[str, tuple[object, ...]] = {}  # by device: the state that its plan followed from

    def plan(self, uuids: Iterable[str], now: float) -> Iterator[SetResident | Prefetch]:
        """Yield the commands for the changes on these devices."""
        for uuid in uuids:
            device = self._devices[uuid]
            head = device.queue.head(now)
            state = (device.memory_version, head, *device.grants)
            if self._planned_for.get(uuid) == state:
                continue
            self._planned_for[uuid] = state
            before = self._plans.get(uuid, {})
            plan = self._plan_device(device, head, lambda client: is_kept(client, now))
            if plan:
                self._plans[uuid] = plan
            elif before:
                del self._plans[uuid]
            for identity in dict.fromkeys((*plan, *before)):
                if plan.get(identity) != before.get(identity) and identity in self._clients:
                    yield SetResident(identity, uuid, plan.get(identity))
            yield from self._plan_prefetch(device, head)

    def target(self, client: str, device: str) -> int | None:
        """Return the bytes that the client may keep on the device, by the last command; None: all bytes."""
        return self._plans.get(device, {}).get(client)

    def remove(self, client: Client) -> None:
        for uuid in client.devices:
            self._plans.get(uuid, {}).pop(client.id, None)

    def _plan_device(self, device: Device, head: Client | None, is_kept: Callable[[Client], bool]) -> dict[str, int]:
        running = [grant.client for grant in device.grants]
        short = sum(client.memory_on(device).unmet for client in running)
        plan: dict[str, int] = {}
        if device.has_memory_shortage:
            # Only as many clients are examined as are needed to make room, even if there are many clients.
            arriving = sum(client.arriving_on(device) for client in running)
            missing = sum(client.missing_on(device) for client in running) + arriving
            if head and not head.grant:
                missing += head.missing_on(device)
            needed = max(device.resident + missing - device.info.memory, 0) + short
            candidates = device.eviction_candidates
            idle, left = _smallest_sufficient(
                device, candidates.idle_oldest_first(), needed, lambda client: not is_kept(client)
            )
            offline, kept_from = _smallest_sufficient(
                device, candidates.waiting_last_first(), left, lambda client: client.service_rank > 0
            )
            kept_idle, left = _smallest_sufficient(device, candidates.idle_oldest_first(), kept_from, is_kept)
            online, _ = _smallest_sufficient(
                device, candidates.waiting_last_first(), left, lambda client: client.service_rank == 0
            )
            idle += kept_idle
            last = [client for client in (*offline, *online) if client not in (head, *running)]
            waiting = [*((head,) if head and not head.grant else ()), *reversed(last)]
            memory_use = {client.id: client.memory_in_turn(device) for client in (*running, *waiting, *idle)}
            planned = sum(client.memory_on(device).resident for client in {*running, *waiting, *idle})
            plan = plan_residency(
                device.info.memory - arriving - (device.resident - planned),
                memory_use,
                [client.id for client in running],
                [client.id for client in waiting],
                [client.id for client in idle],
                short,
                {client.id for client in (*running, *waiting, *idle) if is_kept(client)},
            )
        for client in device.forced_evictions.values():
            leaves = client.suspended or client.evicted
            bound = 0 if leaves else client.quota.resident
            if bound is not None and (leaves or device.queue.has_others(client)):
                bound = client.part_on(device, bound) + client.memory_on(device).context
                bound = max(bound, client.memory_on(device).unmovable)
                plan[client.id] = min(plan.get(client.id, bound), bound)
        return plan

    def _plan_prefetch(self, device: Device, head: Client | None) -> Iterator[Prefetch]:
        coming = head if head and not head.grant and device.grants and self._fits_prefetch(device, head) else None
        before, device.prefetching_client = device.prefetching_client, coming
        if coming is before:
            return
        if before and before.id in self._clients:
            yield Prefetch(before.id, device.info.uuid, False)
        if coming:
            yield Prefetch(coming.id, device.info.uuid, True)

    def _fits_prefetch(self, device: Device, head: Client) -> bool:
        """Return whether resident and restored memory leave the device room for evicted memory of `head`.

        A running client that lacks room has found the device full, whatever the figures of the coordinator are.
        """
        if any(grant.client.moving_to for grant in device.grants):
            return False  # the room is for the memory that arrives
        is_full = any(grant.client.memory_on(device).unmet for grant in device.grants)
        return not head.evicted and _restorable_bytes(device, head) > 0 and not is_full and free_bytes(device) > 0


def is_kept(client: Client, now: float) -> bool:
    """Return whether the client is online and in use, so that offline memory leaves before that of the client."""
    if client.service_rank or client.suspended or not client.processes:
        return False
    in_use = client.grant is not None or client.waiting_since is not None
    return in_use or now - client.last_turn_ended_at < _KEPT_SECONDS


def kept_until(client: Client) -> float:
    """Return until when `is_kept` holds for a client that neither runs nor waits, without a further turn."""
    return client.last_turn_ended_at + _KEPT_SECONDS


def _restorable_bytes(device: Device, client: Client) -> int:
    return min(client.memory_on(device).evicted_bytes, client.missing_on(device))


def _smallest_sufficient(
    device: Device, clients: Generator[Client, None, None], needed: int, accepts: Callable[[Client], bool]
) -> tuple[list[Client], int]:
    """Return the first accepted clients that together have `needed` movable bytes there, and the bytes they lack."""
    found = []
    while needed > 0 and (client := next(clients, None)) is not None:
        if accepts(client):
            found.append(client)
            needed -= client.memory_on(device).movable
    clients.close()
    return found, needed
