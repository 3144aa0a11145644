"""Room on a device for the memory of several clients, and for a client that spills.

An offline client spills if only a part of its memory is on the device in its turn. The work then reaches the rest over
the link. So an offline client runs beside online clients whose memory leaves too little room, and only the offline
client's memory gives way. TGS (Wu et al., NSDI 2023) does the same by unified memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..interface.settings import EXCLUSIVE
from ..residency.residency_plan import can_make_resident
from ..state.model import Client, Device

_MIN_PART = 4  # a client keeps a quarter of its memory on the device, because its work would hardly advance with less
_RESERVE_PART = 32  # this part of a device stays free beside a turn limit, for memory that is about to be allocated
_STEP_PART = 128  # turn limits are multiples of this part of a device, so that small changes move no memory


def memory_needed(device: Device, client: Client) -> int:
    """Return the client's bytes on the device. Bytes that can never be resident there do not count."""
    use, quota = client.memory_on(device), client.quota_in_turn(device)
    demand = use.allocated if use.unmet and can_make_resident(device, client) else 0
    needed = max(client.part_on(device, max(*client.peak_bytes, client.expected_bytes)), demand)
    return needed if quota is None else min(needed, quota)


@dataclass(frozen=True)
class MemoryDemand:
    """Sums of the memory of some clients on a device, in bytes."""

    needed: int  # by `memory_needed`
    in_turn: int  # without the memory above turn limits
    unmovable: int

    def __add__(self, other: MemoryDemand) -> MemoryDemand:
        return MemoryDemand(self.needed + other.needed, self.in_turn + other.in_turn, self.unmovable + other.unmovable)


def memory_demand(device: Device, clients: Iterable[Client]) -> MemoryDemand:
    """Return the demand of the clients on the device."""
    needed = in_turn = unmovable = 0
    for client in clients:
        size, own_unmovable = memory_needed(device, client), client.memory_on(device).unmovable
        needed += size
        in_turn += size if client.turn_limit is None else min(size, max(client.turn_limit, own_unmovable))
        unmovable += own_unmovable
    return MemoryDemand(needed, in_turn, unmovable)


def fits_in_memory(device: Device, clients: Sequence[Client]) -> bool:
    """Return whether the memory that the clients have, or had a turn ago, fits on the device at the same time.

    A cell that ran before is expected to need as much memory as it did then. Memory of other clients that cannot leave
    the device counts as well. Memory above a turn limit does not count, and a turn limit may become smaller.
    """
    demand = memory_demand(device, clients)
    if demand.in_turn + device.unmovable - demand.unmovable <= device.capacity:
        return True
    limited = [client for client in clients if client.turn_limit is not None]
    return any(
        turn_limit_beside(device, client, memory_demand(device, (one for one in clients if one is not client)))
        is not None
        for client in limited
    )


def fits_completely(device: Device, demand: MemoryDemand) -> bool:
    """Return whether the device holds all memory that is needed at the same time, without turn limits."""
    return demand.needed + device.unmovable - demand.unmovable <= device.capacity


def turn_limit_beside(device: Device, client: Client, others: MemoryDemand) -> int | None:
    """Return the bytes that `client` may have on the device in a turn beside the demand of other clients.

    None: the client cannot spill, or the other clients leave too little room.
    """
    if not _can_spill(device, client):
        return None
    own = client.memory_on(device).unmovable
    room = device.capacity - (device.unmovable - own - others.unmovable) - others.in_turn
    step = max(1, device.info.memory // _STEP_PART)
    limit = (room - device.info.memory // _RESERVE_PART) // step * step
    return limit if limit >= max(memory_needed(device, client) // _MIN_PART, own + step) else None


def _can_spill(device: Device, client: Client) -> bool:
    is_on_one_device = len(client.devices) == 1 and not client.moving_to
    has_failed = client.memory_use.allocated > client.unspillable_bytes // 2 > 0
    is_free_to_spill = client.can_spill and client.service_rank > 0 and not has_failed
    return is_free_to_spill and is_on_one_device and device.settings.sharing != EXCLUSIVE
