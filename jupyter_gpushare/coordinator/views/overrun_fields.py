"""Fields and notes of the snapshot about overruns."""

from __future__ import annotations

from typing import Any

from ...core import Scheduler
from ...core.colocation.colocation_rules import admits_others
from ...core.interface.settings import INTERRUPT, JOIN
from ...core.state.model import Client, Grant

_WORK_REMAINS = "its turn is over, and its work on the GPU has not ended"
_MEMORY_REMAINS = "its turn is over, and its memory has not left the GPU"


def overrun_fields(client: Client) -> dict[str, Any]:
    """Return a field of a client in the snapshot: whether the Jupyter server must interrupt the kernel in this turn."""
    return {"interrupt_asked": client.grant is not None and client.grant.is_interrupted}


def overrun_notes(scheduler: Scheduler, client: Client, now: float) -> list[str]:
    """Return notes for the client's user about an overrun of the client or of a colocated client."""
    grant = client.grant
    if grant is None:
        return []
    others = [other for uuid in grant.devices for other in scheduler.devices[uuid].grants if other is not grant]
    if grant.is_overrun:
        state = _WORK_REMAINS if grant.evicting_since is None else _MEMORY_REMAINS
        return [f"{state}: {_consequence(scheduler, grant, others, now)}"]
    if any(admits_others(other, scheduler.settings, now) for other in others):
        return ["another client's turn is over, and its work has not left the GPU: both clients run at the same time"]
    return []


def _consequence(scheduler: Scheduler, grant: Grant, others: list[Grant], now: float) -> str:
    if grant.is_interrupted:
        return "its kernel was asked to interrupt its cell, and does that when the running call returns"
    if others and admits_others(grant, scheduler.settings, now):
        return "other clients run at the same time"
    if scheduler.settings.overrun == JOIN:
        return "if this lasts, clients whose memory fits will run at the same time"
    if scheduler.settings.overrun == INTERRUPT and grant.evicting_since is None:
        return "if this lasts, its kernel will be asked to interrupt its cell"
    return "other clients wait for that"
