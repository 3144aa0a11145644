"""Fields and notes of a client in the snapshot.

A note is a sentence for the client's user, without times, because a time changes without a new snapshot.
"""

from __future__ import annotations

from typing import Any

from ...core import Scheduler
from ...core.colocation.colocation_rules import admits_others
from ...core.handlers.idle_policy import IdleForecast
from ...core.interface.settings import EXCLUSIVE, INTERRUPT, JOIN, Settings
from ...core.queueing.policies.virtual_clocks import VirtualClocks
from ...core.state.model import IDLE, RUNNING, SUSPENDED, WAITING, Client, Grant
from ...core.views.wait_forecast import is_holding
from ...units import format_size

# The part up to " · " fits into a status bar. Times are fields of their own, because they pass without a new snapshot.
_STATE_TEXTS = {
    "idle": "idle",
    "unused": "idle · has not used the GPU yet",
    "idle_warned": "idle for long",
    "idle_evicted": "idle, moved off · memory comes back with the next turn",
    "hibernated": "hibernated · all memory comes back with the next cell or GPU call",
    "waiting": "waiting",
    "short_of_room": "waiting for room · memory of another client cannot leave the GPU",
    "no_room_in_turn": "waiting for room · other clients or programs fill the GPU",
    "running": "running",
    "held": "held",
    "draining": "turn ending",
    "overrun": "turn overrun · work or memory has not left the GPU",
    "suspended": "suspended · GPU calls wait until it is resumed",
    "cannot_return": "cannot use the GPU any more · restart the kernel",
    "idle_suspended": "suspended, idle · the next cell or GPU call resumes it",
}

_WORK_REMAINS = "its turn is over, and its work on the GPU has not ended"
_MEMORY_REMAINS = "its turn is over, and its memory has not left the GPU"


def state_fields(
    client: Client, position: int | None, forecast: IdleForecast | None, now: float, moving_to: str = ""
) -> dict[str, str]:
    """Return the fields `state` and `state_text` of a client in the snapshot.

    `moving_to` is the name of the other device that the client moves to, or "".
    """
    state = _state(client, forecast, now)
    text = f"#{position} in queue" if state == WAITING and position else _STATE_TEXTS[state]
    if client.is_short_of_room:
        text = _STATE_TEXTS["short_of_room"]
    if client.cannot_return:
        text = _STATE_TEXTS["cannot_return"]
    if state == RUNNING and client.unmet_bytes and any(client.missing_on(one) for one in client.device_bindings):
        text = _STATE_TEXTS["no_room_in_turn"]
    if moving_to:
        text = f"moving · to {moving_to}"
    return {"state": state, "state_text": text}


def _state(client: Client, forecast: IdleForecast | None, now: float) -> str:
    if client.phase == SUSPENDED:
        return "idle_suspended" if client.suspended_by_policy else SUSPENDED
    if client.phase == RUNNING and client.grant and is_holding(client.grant, now):
        return "held"
    if client.phase != IDLE:
        return client.phase
    if not client.devices:
        return "unused"
    if client.hibernated:
        return "hibernated"
    warned = forecast is not None and forecast.is_warning_due
    if warned and forecast and (forecast.evict_in_seconds is not None or forecast.suspend_in_seconds is not None):
        return "idle_warned"
    if client.evicted_by_policy:
        return "idle_evicted"
    return "idle_warned" if warned and client.memory_use.has_resident_allocations else IDLE


def idle_fields(client: Client, forecast: IdleForecast | None) -> dict[str, Any]:
    """Return the fields of the snapshot about a client's idle time and its consequences.

    `idle_seconds` is null for a client that is not idle. `evicted_in` and `suspended_in` are seconds, or null if the
    idle policy would not evict or suspend the client.
    """
    return {
        "idle_seconds": None if forecast is None else round(forecast.idle_seconds, 3),
        "idle_warned": forecast is not None and forecast.is_warning_due,
        "evicted_in": _rounded(forecast.evict_in_seconds if forecast else None),
        "suspended_in": _rounded(forecast.suspend_in_seconds if forecast else None),
        "evicted_by_policy": client.evicted_by_policy,
        "suspended_by_policy": client.suspended_by_policy,
    }


def idle_notes(client: Client, forecast: IdleForecast | None) -> list[str]:
    """Return notes about a client that has been idle for long."""
    note = _idle_note(client, forecast) if forecast else ""
    return [f"not used for long{note}"] if note else []


def _idle_note(client: Client, forecast: IdleForecast) -> str:
    if client.suspended_by_policy:
        return " and therefore suspended; its next cell or GPU call resumes it, and nothing is lost"
    evicted, suspended = forecast.evict_in_seconds, forecast.suspend_in_seconds
    if forecast.is_warning_due and evicted is not None and (suspended is None or evicted < suspended):
        return ": its memory is about to leave the GPU, until its next turn"
    if forecast.is_warning_due and suspended is not None:
        return ": it is about to be suspended, until its next cell or GPU call"
    if client.evicted_by_policy:
        return ": its memory has left the GPU and comes back with its next turn"
    if forecast.is_warning_due and client.memory_use.has_resident_allocations:
        allocations = client.memory_use.resident - client.memory_use.context
        return f", with {format_size(allocations)} of the GPU's memory: free what is not needed"
    return ""


def overrun_fields(client: Client) -> dict[str, Any]:
    """Return a field of a client in the snapshot: whether the Jupyter server must interrupt the kernel in this turn."""
    return {"interrupt_requested": client.grant is not None and client.grant.is_interrupted}


def overrun_notes(scheduler: Scheduler, client: Client, now: float) -> list[str]:
    """Return notes for the client's user about an overrun of the client or of a colocated client."""
    grant = client.grant
    if grant is None:
        return []
    devices = [scheduler.devices[uuid] for uuid in grant.devices]
    others = [(device, other) for device in devices for other in device.grants if other is not grant]
    if grant.is_overrun:
        state = _WORK_REMAINS if grant.evicting_since is None else _MEMORY_REMAINS
        return [f"{state}: {_consequence(scheduler.settings_of(client), grant, bool(others), now)}"]
    if any(admits_others(other, device.settings, now) for device, other in others):
        return ["another client's turn is over, and its work has not left the GPU: both clients run at the same time"]
    return []


def _consequence(settings: Settings, grant: Grant, has_others: bool, now: float) -> str:
    if grant.is_interrupted:
        return "its kernel was asked to interrupt its cell, and does that when the running call returns"
    if has_others and admits_others(grant, settings, now):
        return "other clients run at the same time"
    if settings.overrun == JOIN:
        return "if this lasts, clients whose memory fits will run at the same time"
    if settings.overrun == INTERRUPT and grant.evicting_since is None:
        return "if this lasts, its kernel will be asked to interrupt its cell"
    return "other clients wait for that"


def placement_fields(scheduler: Scheduler, client: Client) -> dict[str, Any]:
    """Return the fields about the labels and the tenant of a client."""
    placed = scheduler.placement_adapter.placement.placed[client.id]
    return {
        "labels": placed.request.to_options(),
        "tenant": placed.tenant or None,
        "is_preemptible_guest": client.is_preemptible_guest,
    }


def name_of_new_device(scheduler: Scheduler, client: Client) -> str:
    """Return the name of the device that the client moves to, or "" if the client does not move."""
    return scheduler.placement_adapter.placement.display_name(client.moving_to) if client.is_moving else ""


def placement_notes(scheduler: Scheduler, client: Client) -> list[str]:
    """Return notes for the client's user about its devices."""
    placement = scheduler.placement_adapter.placement
    placed = placement.placed[client.id]
    notes = [
        f"device {device.name or device.uuid} has failed ({device.failure}): "
        f"{scheduler.placement_adapter.failure_remedy(client)}"
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


def share_notes(scheduler: Scheduler, client: Client) -> list[str]:
    """Return a note for the client's user on a share that turns ignore, or that online clients may use up."""
    settings, policy = scheduler.settings_of(client), scheduler.turns.table.policies.policy_of(client)
    policy_share = policy.share(client)
    if not client.quota.share:
        return []
    if policy_share and isinstance(policy, VirtualClocks):
        is_offline = client.quota.service == "offline"
        note = f"share {client.quota.share:g} holds among offline clients only: online clients go first"
        return [note] if is_offline else []
    colocated = " and among colocated clients" if policy_share and settings.sharing != EXCLUSIVE else ""
    return [
        f"share {client.quota.share:g} counts in placement{colocated}, not in turns: "
        f"the policy {settings.policy} ignores shares there (the policies interactive and fair do not)"
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
