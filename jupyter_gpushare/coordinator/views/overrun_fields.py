"""What is told of turns that do not end: to the client whose turn it is, and to those who run beside it."""

from __future__ import annotations

from typing import Any

from ...core import Scheduler
from ...core.colocation.overrun_policy import admits_others
from ...core.interface.settings import INTERRUPT, JOIN
from ...core.state.model import Client, Grant

_WORK_REMAINS = "its turn is over, and its work on the GPU has not ended"
_MEMORY_REMAINS = "its turn is over, and its memory has not left the GPU"


def overrun_fields(client: Client) -> dict[str, Any]:
    """A field of a client in the snapshot: whether its kernel's Jupyter server is to interrupt it, in this turn."""
    return {"interrupt_asked": client.grant is not None and client.grant.is_interrupted}


def overrun_notes(scheduler: Scheduler, client: Client, now: float) -> list[str]:
    """What its user should know."""
    grant = client.grant
    if grant is None:
        return []
    others = [other for uuid in grant.devices for other in scheduler.devices[uuid].grants if other is not grant]
    if grant.is_overrun:
        state = _WORK_REMAINS if grant.evicting_since is None else _MEMORY_REMAINS
        return [f"{state}: {_consequence(scheduler, grant, others, now)}"]
    if any(admits_others(other, scheduler.settings, now) for other in others):
        return ["another client's turn is over, and it has not left the GPU: this one runs beside it"]
    return []


def _consequence(scheduler: Scheduler, grant: Grant, others: list[Grant], now: float) -> str:
    if grant.is_interrupted:
        return "its kernel was asked to interrupt its cell, which it does when the call that runs returns"
    if others and admits_others(grant, scheduler.settings, now):
        return "others run beside it"
    if scheduler.settings.overrun == JOIN:
        return "if it goes on, others whose memory fits are let in beside it"
    if scheduler.settings.overrun == INTERRUPT and grant.evicting_since is None:
        return "if it goes on, its kernel is asked to interrupt its cell"
    return "others wait for that"
