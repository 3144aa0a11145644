"""What may stay in device memory, and what leaves before the next client needs the room.

The order of the coming turns is known, so what is needed latest leaves (as Belady's rule has it): first what idle
clients have left there, the longest idle first, then the client whose turn ends, which goes to the end of the queue,
then the queue from its end. Only as much leaves as the next client needs; where all fits, nothing does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from .commands import SetResident
from .model import Client, Device, Held


def stays(
    memory: int,
    held: Mapping[str, Held],
    running: str | None,
    queue: Sequence[str],
    idle: Sequence[str],
    short: int = 0,
) -> dict[str, int]:
    """Bytes that each client may keep on a device of `memory` bytes; those not named may keep everything.

    `queue` has the next client first, `idle` the longest idle one first. `short`: bytes that the running client asked
    for and could not get. What the running client may keep counts from the end of its turn on.
    """
    after = {client: one.resident for client, one in held.items()}

    def leave(shortage: int, clients: Iterable[str]) -> None:
        for client in clients:
            part = max(0, min(shortage, after[client] - held[client].pinned))
            after[client] -= part
            shortage -= part

    if running is not None:
        missing = held[running].allocated - held[running].resident
        # Its memory that is away is needed back; what it was refused is needed on top, whatever the figures say.
        shortage = max(sum(after.values()) + missing - memory, short)
        leave(shortage, [*idle, *(client for client in reversed(queue) if client != running)])
        after[running] += missing
    coming = next((client for client in queue if client != running), None)
    if coming is not None:
        missing = held[coming].allocated - after[coming]
        others = [client for client in reversed(queue) if client not in (coming, running)]
        ending = [] if running is None else [running]
        leave(sum(after.values()) + missing - memory, [*idle, *ending, *others])
    # The running client will have all of its memory there when its turn ends.
    most = {client: one.allocated if client == running else one.resident for client, one in held.items()}
    return {client: left for client, left in after.items() if left < most[client]}


class Residence:
    """Keeps what was last said to each client, and says what has changed."""

    def __init__(self, clients: dict[str, Client], devices: dict[str, Device]) -> None:
        self._clients = clients
        self._devices = devices
        self._said: dict[str, int] = {}

    def settle(self, queues: Mapping[str, Sequence[Client]]) -> Iterator[SetResident]:
        """Commands for what is to change. `queues`: of each device on which clients wait, the next client first."""
        left: dict[str, int] = {}
        for uuid, device in self._devices.items():
            left.update(self._of_device(uuid, device, queues.get(uuid, ()), left))
        waited = {client for queue in queues.values() for client in queue}
        for client in self._clients.values():
            bound = client.quota.resident
            if bound is not None and any(queues.get(uuid) for uuid in client.devices) and waited != {client}:
                left[client.id] = min(left.get(client.id, bound), bound)
        for identity in [*left, *(set(self._said) - set(left))]:
            wanted = left.get(identity)
            if self._said.get(identity) == wanted:
                continue
            if wanted is None:
                del self._said[identity]
            else:
                self._said[identity] = wanted
            if identity in self._clients:
                yield SetResident(identity, wanted)

    def said(self, client: str) -> int | None:
        """Bytes that the client may keep, by the last command; None: everything."""
        return self._said.get(client)

    def _of_device(self, uuid: str, device: Device, queue: Sequence[Client], left: Mapping[str, int]) -> dict[str, int]:
        here = [client for client in self._clients.values() if uuid in client.devices]
        if sum(client.held.allocated for client in here) <= device.info.memory and not any(c.short for c in here):
            return {}
        held = {client.id: _part(client) for client in here}
        running = device.grants[0].client if device.grants else None
        waiting = [client.id for client in queue if client.id in held]
        away = set(waiting) | ({running.id} if running else set())
        idle = sorted((client for client in here if client.id not in away), key=lambda client: client.last_ran)
        kept = stays(
            device.info.memory,
            held,
            running.id if running and running.id in held else None,
            waiting,
            [client.id for client in idle],
            running.short if running else 0,
        )
        # A client of several devices has a part of its bytes on each, and one sum on its page.
        targets = {}
        for client, part in kept.items():
            runs = running is not None and client == running.id
            whole = self._clients[client].held.allocated if runs else self._clients[client].held.resident
            most = held[client].allocated if runs else held[client].resident
            targets[client] = left.get(client, whole) - (most - part)
        return targets


def _part(client: Client) -> Held:
    count = len(client.devices)
    held = client.held
    return Held(held.allocated // count, held.resident // count, held.pinned // count)
