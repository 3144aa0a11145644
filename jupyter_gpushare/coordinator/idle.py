"""What is told of clients that nobody uses: for how long, and to their users what comes of it."""

from __future__ import annotations

import math
from typing import Any

from ..core import Scheduler
from ..core.idleness import Prospect
from ..core.model import Client
from ..wire.text import format_size


def of_client(scheduler: Scheduler, client: Client, now: float) -> dict[str, Any]:
    """Fields of a client in the snapshot; `idle_seconds` is null while it is in use, `evicted_in` and `suspended_in`
    (seconds) where that does not come, as things are now."""
    prospect = scheduler.idleness.prospect(client, now)
    return {
        "idle_seconds": None if prospect is None else round(prospect.idle, 3),
        "idle_warned": prospect is not None and prospect.warned,
        "evicted_in": _in(prospect.evicted_in if prospect else None),
        "suspended_in": _in(prospect.suspended_in if prospect else None),
        "evicted_by_policy": client.evicted_by_policy,
        "suspended_by_policy": client.suspended_by_policy,
    }


def notes(scheduler: Scheduler, client: Client, now: float) -> list[str]:
    """What its user should know."""
    prospect = scheduler.idleness.prospect(client, now)
    return [] if prospect is None else [note for note in [_note(client, prospect)] if note]


def _note(client: Client, prospect: Prospect) -> str:
    lasted = f"idle for {_lasted(prospect.idle)}"
    if client.suspended_by_policy:
        return f"{lasted} and therefore suspended; its next cell or GPU call resumes it, and nothing is lost"
    evicted, suspended = prospect.evicted_in, prospect.suspended_in
    if prospect.warned and evicted is not None and (suspended is None or evicted < suspended):
        return f"{lasted}: its memory leaves the GPU in {_to_come(evicted)}, until its next turn"
    if prospect.warned and suspended is not None:
        return f"{lasted}: it is suspended in {_to_come(suspended)}, until its next cell or GPU call"
    if client.evicted_by_policy:
        return f"{lasted}: its memory has left the GPU and comes back with its next turn"
    if prospect.warned and client.held.resident:
        return f"{lasted}, with {format_size(client.held.resident)} of the GPU's memory: free what is not needed"
    return ""


def _in(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _lasted(seconds: float) -> str:
    """In one unit, rounded down, so that it changes seldom: 7300 -> "2 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min" if seconds < 7200 else f"{seconds // 3600:.0f} h"


def _to_come(seconds: float) -> str:
    """In one unit, rounded up: 61 -> "2 min"."""
    if seconds <= 60:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min" if seconds <= 7200 else f"{math.ceil(seconds / 3600)} h"
