"""Rules for clients that have a device at the same time: the clients that may join, and the grants to end.

The rules use settings, memory and demand; `colocation_control` finds by trial whether a colocation pays. The rules also
measure the capacity of a full device.

Other rules decide on an overrun, which the scheduler cannot end, because only the client's process ends its work on the
device. By setting, other clients wait, other clients join the device, or the client's kernel interrupts its cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Protocol

from ..interface.settings import AUTO, EXCLUSIVE, INTERRUPT, JOIN, PACKED, WAIT, Settings
from ..residency.residency_plan import can_make_resident, is_kept
from ..state.model import Client, Device, Grant
from .colocation_control import ColocationController
from .memory_fit import fits_in_memory

_MAX_TOTAL_DEMAND = 1.1  # demand of colocated clients for a device; above 1, because demands are estimates
_DEFAULT_DEMAND = 0.5  # demand of a client whose demand is unknown
_LONG_WORK_SECONDS = 30.0  # of recent usage
_MAX_UNALLOCATED_PART = 8  # a request for room that no allocation shows is for an eighth of the device at most (room.c)
_CAPACITY_VALID_SECONDS = 600.0  # for which the capacity of a device holds that was measured when it was full


class SchedulingContext(Protocol):
    """State of the scheduler that the rules read."""

    now: float


class ColocationRules:
    """Rules for the grants of a device, with the results of trials."""

    def __init__(self, context: SchedulingContext, colocation: ColocationController) -> None:
        self._context = context
        self._colocation = colocation

    def can_colocate(self, device: Device, client: Client) -> bool:
        """Return whether the client may be colocated with the clients that have the device."""
        if client.grant or any(one.moving_to for one in (client, *(grant.client for grant in device.grants))):
            return False
        if not self._fits(device, [*(grant.client for grant in device.grants), client]):
            return False
        members = [grant.client for grant in device.grants if not self._admits_others(device, grant)]
        if not members:
            return True  # no member would leave the device for the client, however slow the colocated client is
        if device.settings.sharing == EXCLUSIVE:
            return False
        if device.settings.sharing == PACKED:
            return True
        clients = [*members, client]
        if any(one.turn_limit is not None for one in clients) and not self._colocation.leave_time(clients):
            return False  # a spilled client has the pauses, and loses nothing of its budget for takeovers meanwhile
        # Sharing a busy device delays all work, and short work most of all, so only long work is tried there.
        shares = any(device.policy.share(member) for member in clients)  # turns keep shares better
        unknown = 1.0 if shares else _DEFAULT_DEMAND
        demand = sum(unknown if member.demand.fraction is None else member.demand.fraction for member in clients)
        if demand > _MAX_TOTAL_DEMAND and len({member.service_rank for member in clients}) == 1:
            if shares:
                return False
            used = [member.usage.at(self._context.now) for member in clients]
            if min(used) < max(_LONG_WORK_SECONDS, max(used) / 3):
                return False
        return self._colocation.may_try(device, client, members, self._context.now)

    def _fits(self, device: Device, clients: list[Client]) -> bool:
        """Return whether the clients fit on the device, beside the memory of online clients that turn limits keep."""
        if any(client.turn_limit is not None for client in clients):
            clients += [
                one for one in device.clients.values() if one not in clients and is_kept(one, self._context.now)
            ]
        return fits_in_memory(device, clients)

    def is_free(self, device: Device) -> bool:
        """Return whether no client has the device, except for overruns that admit others."""
        return all(self._admits_others(device, grant) for grant in device.grants)

    def is_blocked_by_overrun(self, device: Device, client: Client) -> bool:
        """Return whether the client cannot have the device before an overrun there has ended."""
        overruns = [grant for grant in device.grants if self._admits_others(device, grant)]
        return bool(overruns) and not fits_in_memory(device, [*(grant.client for grant in overruns), client])

    def grants_to_separate(self, device: Device, now: float) -> Iterator[Grant]:
        """Yield grants to end, because clients that ran together no longer fit or slow each other down.

        An offline client goes first, else the client that joined last.
        """
        running = [grant for grant in device.grants if not grant.is_draining]
        running.sort(key=lambda grant: grant.client.service_rank)
        staying = [grant for grant in device.grants if self._admits_others(device, grant)]
        if device.measured_capacity_until <= now:
            device.measured_capacity = None
        if len(running) + len(staying) > 1:
            self._measure_capacity(device, running, staying, now)
        while running and len(running) + len(staying) > 1:
            together = len(running) == 1 or device.settings.sharing != EXCLUSIVE
            if together and fits_in_memory(device, [grant.client for grant in (*staying, *running)]):
                break
            yield running.pop()
        client = (
            self._colocation.client_to_separate(device, now)
            if device.settings.sharing == AUTO and len(running) > 1
            else None
        )
        if client and client.grant and client.grant in running:
            yield client.grant

    def _measure_capacity(self, device: Device, running: list[Grant], staying: list[Grant], now: float) -> None:
        """Measure the capacity of the device if running clients lack more memory than other clients can give up there.

        The driver takes a part of the memory, and so may programs that do not share the device.
        """
        restorable = [grant.client for grant in running if can_make_resident(device, grant.client)]
        # The bytes that an allocation lacks count as allocated. A context, code or a graph has no allocation.
        unallocated = device.info.memory // _MAX_UNALLOCATED_PART
        uses = [client.memory_on(device) for client in restorable]
        short = sum(min(use.unmet, max(use.allocated, unallocated)) for use in uses)
        evictable = (
            device.resident
            - device.unmovable
            - sum(grant.client.memory_on(device).movable for grant in [*running, *staying])
        )
        if short > evictable:
            missing = sum(grant.client.missing_on(device) for grant in running)
            device.measured_capacity, device.measured_capacity_until = (
                device.resident + missing - short,
                now + _CAPACITY_VALID_SECONDS,
            )

    def _admits_others(self, device: Device, grant: Grant) -> bool:
        return admits_others(grant, device.settings, self._context.now)


def takeover_at_of(online: Iterable[Client], now: float) -> float:
    """Return when `online` clients can bear the loss that a turn of an offline client costs them.

    Minus infinity: the return of these clients has cost nothing so far.
    """
    return max((other.takeover_budget.ready_at(_paused_since(other), now) for other in online), default=-math.inf)


def _paused_since(client: Client) -> float | None:
    return None if client.grant or client.waiting_since is not None else client.last_turn_ended_at


def overrun_deadline(grant: Grant, settings: Settings) -> float | None:
    """Return when other clients have waited long enough for the end of an overrun; None: no overrun, or no bound."""
    if grant.overrun_since is None or settings.overrun == WAIT:
        return None
    return grant.overrun_since + settings.overrun_patience


def admits_others(grant: Grant, settings: Settings, now: float) -> bool:
    """Return whether other clients that fit on the device with the grant's client need not wait for the grant's end."""
    return settings.overrun == JOIN and _is_past_grace(grant, settings, now)


def should_interrupt(grant: Grant, settings: Settings, now: float) -> bool:
    """Return whether to interrupt the kernel, once for each turn.

    An eviction is not interrupted, because it does not depend on the cell.
    """
    if settings.overrun != INTERRUPT or grant.is_interrupted or grant.evicting_since is not None:
        return False
    return _is_past_grace(grant, settings, now)


def _is_past_grace(grant: Grant, settings: Settings, now: float) -> bool:
    ends = overrun_deadline(grant, settings)
    return ends is not None and ends <= now
