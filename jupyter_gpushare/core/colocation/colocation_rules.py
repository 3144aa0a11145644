"""Rules that decide which clients may have a device at the same time, by settings, memory and demand.

`colocation_control` finds by trial whether a colocation pays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ..interface.settings import AUTO, EXCLUSIVE, PACKED, Settings
from ..queueing.policies import Policy
from ..residency.residency_plan import can_make_resident
from ..state.model import Client, Device, Grant
from .colocation_control import ColocationController
from .overrun_policy import admits_others

_MAX_TOTAL_DEMAND = 1.1  # what clients who run together may ask for of a device: some of it is estimated
_DEFAULT_DEMAND = 0.5  # what a client asks for of which nothing is known yet
_LONG_WORK_SECONDS = 30.0  # seconds of recent use
_CAPACITY_VALID_SECONDS = 600.0  # seconds for which a device is taken to hold no more than when a client found it full


class SchedulingContext(Protocol):
    """What the rules read of the scheduler's state."""

    settings: Settings
    policy: Policy
    now: float


class ColocationRules:
    """Says who suits whom, by the books of grants and what trials have shown."""

    def __init__(self, context: SchedulingContext, colocation: ColocationController) -> None:
        self._context = context
        self._colocation = colocation

    def can_colocate(self, device: Device, client: Client) -> bool:
        """Whether the client may run beside those who have the device."""
        if client.grant:
            return False
        if not fits_in_memory(device, [*(grant.client for grant in device.grants), client]):
            return False
        members = [grant.client for grant in device.grants if not self._admits_others(grant)]
        if not members:
            return True  # none of them would go for it, as slow as it may be
        if self._context.settings.sharing == EXCLUSIVE:
            return False
        if self._context.settings.sharing == PACKED:
            return True
        # Who must share a busy device is later done, and short work most of all: only what is long is tried out there.
        together = [*members, client]
        shares = any(self._context.policy.share(one) for one in together)  # turns keep them better
        unknown = 1.0 if shares else _DEFAULT_DEMAND
        asked = sum(unknown if one.demand.fraction is None else one.demand.fraction for one in together)
        if asked > _MAX_TOTAL_DEMAND and len({one.service_rank for one in together}) == 1:
            if shares:
                return False
            used = [one.usage.at(self._context.now) for one in together]
            if min(used) < max(_LONG_WORK_SECONDS, max(used) / 3):
                return False
        return self._colocation.may_try(device, client, members, self._context.now)

    def is_free(self, device: Device) -> bool:
        """Whether nobody has the device, or nobody whose end is still waited for."""
        return all(self._admits_others(grant) for grant in device.grants)

    def is_blocked_by_overrun(self, device: Device, client: Client) -> bool:
        """Whether the client cannot have the device before an overrun there has ended."""
        late = [grant for grant in device.grants if self._admits_others(grant)]
        return bool(late) and not fits_in_memory(device, [*(grant.client for grant in late), client])

    def grants_to_separate(self, device: Device, now: float) -> Iterator[Grant]:
        """Clients that ran together fit no longer, or are in each other's way: an offline one goes, or the last one."""
        running = [grant for grant in device.grants if not grant.is_draining]
        running.sort(key=lambda grant: grant.client.service_rank)
        staying = [grant for grant in device.grants if self._admits_others(grant)]
        if device.measured_capacity_until <= now:
            device.measured_capacity = None
        if len(running) + len(staying) > 1:
            self._measure_capacity(device, running, staying, now)
        while running and len(running) + len(staying) > 1:
            together = len(running) == 1 or self._context.settings.sharing != EXCLUSIVE
            if together and fits_in_memory(device, [grant.client for grant in (*staying, *running)]):
                break
            yield running.pop()
        loser = (
            self._colocation.client_to_separate(device, now)
            if self._context.settings.sharing == AUTO and len(running) > 1
            else None
        )
        if loser and loser.grant and loser.grant in running:
            yield loser.grant

    def _measure_capacity(self, device: Device, running: list[Grant], staying: list[Grant], now: float) -> None:
        """Take note of what the device holds, if running clients are short of more than the others can give up there:
        the driver takes a part of its memory, and so may programs that are not shared.
        """
        asking = [grant.client for grant in running if can_make_resident(device, grant.client)]
        short = sum(min(client.unmet_bytes, client.memory_per_device.allocated) for client in asking)
        leaves = (
            device.resident
            - device.unmovable
            - sum(grant.client.memory_per_device.movable for grant in [*running, *staying])
        )
        if short > leaves:
            missing = sum(grant.client.memory_per_device.evicted_bytes for grant in running)
            device.measured_capacity, device.measured_capacity_until = (
                device.resident + missing - short,
                now + _CAPACITY_VALID_SECONDS,
            )

    def _admits_others(self, grant: Grant) -> bool:
        return admits_others(grant, self._context.settings, self._context.now)


def fits_in_memory(device: Device, clients: list[Client]) -> bool:
    """Return whether all that the clients have, or had a turn ago, fits on the device at the same time.

    Memory of other clients that cannot leave the device counts as well.
    """
    stuck = device.unmovable - sum(client.memory_per_device.unmovable for client in clients)
    return sum(memory_needed(device, client) for client in clients) + stuck <= device.capacity


def memory_needed(device: Device, client: Client) -> int:
    """Bytes on the device, and on each other one of the client's. What it asks for in vain does not count."""
    asked = client.memory_use.allocated if client.unmet_bytes and can_make_resident(device, client) else 0
    return max(*client.peak_bytes, asked) // max(1, len(client.devices))
