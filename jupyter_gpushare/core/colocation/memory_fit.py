"""Room on a device for the memory of several clients, and for a client that spills.

An offline client spills if only a part of its memory is on the device in its turn. The work then reaches the rest over
the link. So an offline client runs beside online clients whose memory leaves too little room, and only the offline
client's memory gives way. TGS (Wu et al., NSDI 2023) does the same by unified memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


def fits_in_memory(device: Device, clients: Sequence[Client]) -> bool:
    """Return whether the memory that the clients have, or had a turn ago, fits on the device at the same time.

    A cell that ran before is expected to need as much memory as it did then. Memory of other clients that cannot leave
    the device counts as well. Memory above a turn limit does not count, and a turn limit may become smaller.
    """
    others_unmovable = device.unmovable - sum(client.memory_on(device).unmovable for client in clients)
    if sum(_bytes_in_turn(device, client) for client in clients) + others_unmovable <= device.capacity:
        return True
    limited = [client for client in clients if client.turn_limit is not None]
    return any(turn_limit_beside(device, client, clients) is not None for client in limited)


def fits_completely(device: Device, clients: Sequence[Client]) -> bool:
    """Return whether all memory of the clients fits on the device at the same time, without turn limits."""
    others_unmovable = device.unmovable - sum(client.memory_on(device).unmovable for client in clients)
    return sum(memory_needed(device, client) for client in clients) + others_unmovable <= device.capacity


def turn_limit_beside(device: Device, client: Client, clients: Iterable[Client]) -> int | None:
    """Return the bytes that `client` may have on the device in a turn beside the other ones of `clients`.

    None: the client cannot spill, or the other clients leave too little room.
    """
    if not _can_spill(device, client):
        return None
    others = [other for other in clients if other is not client]
    own = client.memory_on(device).unmovable
    unmovable = device.unmovable - own - sum(other.memory_on(device).unmovable for other in others)
    room = device.capacity - unmovable - sum(_bytes_in_turn(device, other) for other in others)
    step = max(1, device.info.memory // _STEP_PART)
    limit = (room - device.info.memory // _RESERVE_PART) // step * step
    return limit if limit >= max(memory_needed(device, client) // _MIN_PART, own + step) else None


def _can_spill(device: Device, client: Client) -> bool:
    is_on_one_device = len(client.devices) == 1 and not client.moving_to
    has_failed = client.memory_use.allocated > client.unspillable_bytes // 2 > 0
    is_free_to_spill = client.can_spill and client.service_rank > 0 and not has_failed
    return is_free_to_spill and is_on_one_device and device.settings.sharing != EXCLUSIVE


def _bytes_in_turn(device: Device, client: Client) -> int:
    needed = memory_needed(device, client)
    if client.turn_limit is None:
        return needed
    return min(needed, max(client.turn_limit, client.memory_on(device).unmovable))
