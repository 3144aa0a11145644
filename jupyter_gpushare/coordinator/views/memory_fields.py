"""Fields and notes of a client in the snapshot about the host memory for what leaves its devices."""

from __future__ import annotations

from typing import Any

from ...core.residency.residency_plan import blocking_clients
from ...core.state.model import Client
from ...units import format_size
from ..host.user_database import user_name
from ..monitoring.host_backing import HostBacking

_LIMIT_REACHED = "because the memory limit of its container or service is reached"


def memory_fields(client: Client, backing: HostBacking) -> dict[str, Any]:
    """Return fields of a client in the snapshot, in bytes.

    `hibernated`: those that have left the device with a hibernated client; 0: the client is not hibernated.
    `max_evicted` is null if no cgroup of the client has a memory limit. `cgroup` is the one with the least room.
    """
    return {
        "memory_backing": backing.allocatable,
        "max_evicted": backing.max_evicted,
        "unbacked": client.memory_use.unbacked,
        "context_memory": client.memory_use.context,
        "hibernated": client.hibernated,
        "cgroup": backing.cgroup or None,
        "cgroup_is_known": backing.is_known,
        "wait_reason": wait_reason(client),
    }


def memory_notes(client: Client, backing: HostBacking) -> list[str]:
    """Return notes for the client's user about memory that cannot leave its devices."""
    notes = []
    if client.memory_use.unbacked:
        notes.append(
            f"{format_size(client.memory_use.unbacked)} of its memory cannot leave the GPU, {_LIMIT_REACHED} "
            f"({backing.cgroup}), so other clients may have to wait: free memory, or raise the limit"
        )
    if client.cannot_return:
        notes.append(wait_reason(client))
    elif reason := wait_reason(client):
        notes.append(f"waits for room: {reason}")
    return notes


def wait_reason(client: Client) -> str:
    """Return for the client's user why the client cannot be next now, or "" if it can."""
    if client.cannot_return:
        return (
            "the driver could not restore the hibernated process, which can no longer use the GPU: restart the kernel"
        )
    if not client.is_short_of_room:
        return ""
    (first, _), *_ = blocking_clients(client)
    cause = f", {_LIMIT_REACHED}" if first.memory_use.unbacked else ": free memory of that client, or end that client"
    return _blocking_memory(client) + cause


def room_refusal(client: Client) -> str:
    """Return for the client's user why a call of a client that is short of room fails."""
    missing = max(client.missing_on(device) for device in client.device_bindings)
    return (
        f"{format_size(missing)} of this program's memory have no room on the device, because "
        f"{_blocking_memory(client)}. So the call failed, and the program's data is unchanged. "
        "Free memory of that client, end that client, or free memory of this program, and try again."
    )


def _blocking_memory(client: Client) -> str:
    (first, size), *others = blocking_clients(client)
    owner = first.label or first.id if first.user == client.user else f"a client of {user_name(first.user)}"
    more = f" and memory of {len(others)} other client(s)" if others else ""
    return f"{format_size(size)} of {owner}{more} cannot leave the GPU"
