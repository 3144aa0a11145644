"""Where clients are and why, for the snapshot."""

from __future__ import annotations

from typing import Any

from ...core import Scheduler
from ...core.state.model import Client


def device_placement_fields(scheduler: Scheduler, uuid: str) -> dict[str, Any]:
    """`failed`: why it is not used for new clients; `guaranteed_to`: the tenant that has it in its cells now."""
    placement = scheduler.placement_adapter.placement
    return {"failed": placement.allocations[uuid].failure or None, "guaranteed_to": placement.owner(uuid) or None}


def placement_fields(scheduler: Scheduler, client: Client) -> dict[str, Any]:
    """Its labels, the tenant that it counts for, and whether it gives way."""
    placed = scheduler.placement_adapter.placement.placed[client.id]
    return {
        "labels": placed.request.to_options(),
        "tenant": placed.tenant or None,
        "is_preemptible_guest": client.is_preemptible_guest,
    }


def placement_notes(scheduler: Scheduler, client: Client) -> list[str]:
    """What its user should know of its devices."""
    placement = scheduler.placement_adapter.placement
    placed = placement.placed[client.id]
    told = [
        f"device {book.name or book.uuid} has failed: {book.failure}; a restarted kernel gets another one"
        for book in (placement.allocations[uuid] for uuid in placed.devices)
        if book.failure
    ]
    if client.is_preemptible_guest:
        owners = sorted({owner for uuid in placed.devices if (owner := placement.owner(uuid)) != placed.tenant})
        told.append(f"this client runs only while tenant {', '.join(owners)}, whose devices these are, is idle")
    return told
