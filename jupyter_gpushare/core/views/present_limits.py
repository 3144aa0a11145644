"""Limits on the launches, turns and memory of a client that are in force at a time, with their reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..interface.launch_budget import ADAPTIVE
from ..scheduler import Scheduler
from ..state.model import RUNNING, WAITING, Client
from .wait_forecast import is_behind_online

# Units, besides those of a launch budget.
QUEUED_SECONDS = "queued_seconds"  # seconds of submitted work
TURN_BYTES = "turn_bytes"  # bytes on its device in its turns
BYTES = "bytes"  # bytes on its devices between its turns, and in mode unified in them too

# Reasons, besides those of a launch budget.
SUSPENDED = "suspended"
TIME_LIMIT = "time_limit"
TAKEOVER = "takeover"
ONLINE_FIRST = "online_first"
OTHER_COORDINATOR = "other_coordinator"
SHORT_OF_ROOM = "short_of_room"
PACKING = "packing"
OTHERS_WAIT = "others_wait"
SPILLED = "spilled"
RESIDENT = "resident"


class Limit(NamedTuple):
    """Limit of `rate` units, for the sake of the clients in `colocated_with`.

    A limit without a rate lets the client have no turn, or none beside these clients. `loss` is the measured part of
    the progress that is lost beside these clients.
    """

    reason: str
    rate: float | None = None
    unit: str | None = None
    colocated_with: tuple[str, ...] = ()
    loss: float | None = None


def present_limits(scheduler: Scheduler, client: Client, now: float, inflight_window: float) -> Iterator[Limit]:
    """Yield the limits of a client; `inflight_window` is that of its processes, in seconds, and 0 without processes."""
    colocation = scheduler.turns.colocation
    if client.suspended:
        yield Limit(SUSPENDED)
    elif client.phase == WAITING:
        yield from _limits_of_waiting_client(scheduler, client, now)
    if budget := colocation.launch_budget(client):
        loss = colocation.online_loss(client) if budget.reason == ADAPTIVE else None
        yield Limit(budget.reason, budget.rate, budget.unit, budget.colocated_with, loss)
    if client.phase == RUNNING:
        if inflight_window and client.permit and client.permit.contended:
            yield Limit(OTHERS_WAIT, inflight_window, QUEUED_SECONDS)
        if client.turn_limit is not None:
            yield Limit(SPILLED, client.turn_limit, TURN_BYTES)
    allocations = client.memory_use.allocated - client.memory_use.context  # no quota counts context memory
    if client.quota.resident is not None and allocations > client.quota.resident:
        yield Limit(RESIDENT, client.quota.resident, BYTES)


def _limits_of_waiting_client(scheduler: Scheduler, client: Client, now: float) -> Iterator[Limit]:
    if client.time_limit and client.time_limit.ready_at() > now:
        yield Limit(TIME_LIMIT)
    if client.service_rank and client.takeover_at > now:
        yield Limit(TAKEOVER)
    elif any(is_behind_online(client, device) for device in client.turn_bindings):
        yield Limit(ONLINE_FIRST)
    if any(device.taken_by_other_since is not None for device in client.device_bindings):
        yield Limit(OTHER_COORDINATOR)
    if client.is_short_of_room:
        yield Limit(SHORT_OF_ROOM)
    if failure := scheduler.turns.colocation.failed_packing(client, now):
        members, progress = failure
        yield Limit(PACKING, colocated_with=tuple(sorted(members - {client.id})), loss=1.0 - progress)
