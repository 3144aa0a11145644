"""Fields and notes of the snapshot about idle clients."""

from __future__ import annotations

from typing import Any

from ...core.handlers.idle_policy import IdleForecast
from ...core.state.model import Client
from ...units import format_size


def idle_fields(client: Client, prospect: IdleForecast | None) -> dict[str, Any]:
    """Return fields of a client in the snapshot.

    `idle_seconds` is null for a client that is not idle. `evicted_in` and `suspended_in` are seconds, or null if the
    idle policy would not evict or suspend the client.
    """
    return {
        "idle_seconds": None if prospect is None else round(prospect.idle_seconds, 3),
        "idle_warned": prospect is not None and prospect.is_warning_due,
        "evicted_in": _rounded(prospect.evict_in_seconds if prospect else None),
        "suspended_in": _rounded(prospect.suspend_in_seconds if prospect else None),
        "evicted_by_policy": client.evicted_by_policy,
        "suspended_by_policy": client.suspended_by_policy,
    }


def idle_notes(client: Client, prospect: IdleForecast | None) -> list[str]:
    """Return notes for the client's user, without times, which change without a new snapshot."""
    note = _idle_note(client, prospect) if prospect else ""
    return [f"not used for long{note}"] if note else []


def _idle_note(client: Client, prospect: IdleForecast) -> str:
    if client.suspended_by_policy:
        return " and therefore suspended; its next cell or GPU call resumes it, and nothing is lost"
    evicted, suspended = prospect.evict_in_seconds, prospect.suspend_in_seconds
    if prospect.is_warning_due and evicted is not None and (suspended is None or evicted < suspended):
        return ": its memory is about to leave the GPU, until its next turn"
    if prospect.is_warning_due and suspended is not None:
        return ": it is about to be suspended, until its next cell or GPU call"
    if client.evicted_by_policy:
        return ": its memory has left the GPU and comes back with its next turn"
    if prospect.is_warning_due and client.memory_use.resident:
        return f", with {format_size(client.memory_use.resident)} of the GPU's memory: free what is not needed"
    return ""


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
