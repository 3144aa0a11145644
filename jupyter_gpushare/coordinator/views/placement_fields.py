"""Fields and notes of the snapshot about placement."""

from __future__ import annotations

from typing import Any

from ...core import Scheduler
from ...core.state.model import Client


def device_placement_fields(scheduler: Scheduler, uuid: str) -> dict[str, Any]:
    """Return fields of a device in the snapshot.

    `failed` is the reason why no new client is placed on the device. `guaranteed_to` is the tenant whose topology cells
    contain the device now.
    """
    placement = scheduler.placement_adapter.placement
    return {"failed": placement.allocations[uuid].failure or None, "guaranteed_to": placement.owner(uuid) or None}


def placement_fields(scheduler: Scheduler, client: Client) -> dict[str, Any]:
    """Return fields of a client in the snapshot."""
    placed = scheduler.placement_adapter.placement.placed[client.id]
    return {
        "labels": placed.request.to_options(),
        "tenant": placed.tenant or None,
        "is_preemptible_guest": client.is_preemptible_guest,
    }


def placement_notes(scheduler: Scheduler, client: Client) -> list[str]:
    """Return notes for the client's user about its devices."""
    placement = scheduler.placement_adapter.placement
    placed = placement.placed[client.id]
    notes = [
        f"device {device.name or device.uuid} has failed ({device.failure}): restart the kernel to get another device"
        for device in (placement.allocations[uuid] for uuid in placed.devices)
        if device.failure
    ]
    if client.is_preemptible_guest:
        owners = sorted({owner for uuid in placed.devices if (owner := placement.owner(uuid)) != placed.tenant})
        notes.append(
            f"the devices of this client are guaranteed to tenant {', '.join(owners)}: "
            "the client runs only while that tenant is idle"
        )
    return notes
