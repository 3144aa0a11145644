"""Until when a turn lasts, working or not: what quanta, holds, limits, classes and memory that comes back say of it."""

from __future__ import annotations

import math

from .closing import Closing
from .model import Client, Device, Grant
from .overruns import patience_ends
from .switching import SLOW_LINK


class Deadlines:
    """Of the grants in `books`; changes nothing there."""

    def __init__(self, books: Closing) -> None:
        self._books = books

    def due(self, grant: Grant) -> float | None:
        """When the grant is to be looked at again: it is to be closed then, or, while it drains, has become late."""
        if grant.draining:
            if not self._books.contended(grant):
                return None
            due = self._books.late_at(grant) if not grant.overrun else patience_ends(grant, self._books.settings)
            return None if due is None or due <= self._books.now else due
        return self.ends(grant, self.deadline(grant))

    def ends(self, grant: Grant, deadline: float | None) -> float | None:
        """When it is to be closed: at its `deadline`, or some time after the end of a cell."""
        if grant.cells_ended is None:
            return deadline
        lingered = max(grant.cells_ended + self._books.settings.cell_linger, grant.client.hold_until or 0.0)
        return lingered if deadline is None else min(deadline, lingered)

    def deadline(self, grant: Grant) -> float | None:
        """When the turn ends, working or not: somebody waits for it, or the client has had what it may have."""
        client = grant.client
        if client.suspended:
            return grant.began
        ends = math.inf
        for uuid in grant.devices:
            ends = min(ends, self._until(grant, self._books.devices[uuid]))
        if client.allowance:
            ends = min(ends, client.allowance.ends_at(grant.began))
        return None if ends == math.inf else ends

    def _until(self, grant: Grant, device: Device) -> float:
        ends = self._until_here(grant, device)
        return ends if device.wanted_since is None else min(ends, self._until_elsewhere(grant, device.wanted_since))

    def _until_elsewhere(self, grant: Grant, wanted_since: float) -> float:
        """Somebody waits for the lock of whom nothing is known but that: for a quantum."""
        client = grant.client
        ends = grant.starts + self._books.policy.quantum(client)
        if client.hold_until is None:
            return ends
        held = min(client.hold_until, wanted_since + self._books.settings.max_hold)
        return held if grant.idle else max(ends, held)

    def _until_here(self, grant: Grant, device: Device) -> float:
        client = grant.client
        head = device.line.head(self._books.now)
        if head is client:  # for further devices
            head = next((one for one in device.line.ordered(self._books.now) if one is not client), None)
        if head is None:
            return math.inf
        if head.rank < client.rank:
            return grant.began
        if head.rank > client.rank:
            # Offline ones have what online ones leave: also what they keep unused, when a hold is over.
            return math.inf if client.hold_until is None or not grant.idle else client.hold_until
        ends = self._books.policy.until(grant, head, device.line.patience_ends(head.rank))
        ends = max(ends, self._memory_there(device, head))
        if client.hold_until is None:
            return ends
        # However often it is asked for, nobody waits for longer because of it.
        waiting_since = device.line.patience_ends(head.rank) - self._books.settings.max_wait
        held = min(client.hold_until, waiting_since + self._books.settings.max_hold)
        return held if grant.idle else max(ends, held)

    def _memory_there(self, device: Device, head: Client) -> float:
        """Until when the memory of the next client comes back while others work: no sooner does it need the device."""
        missing = head.part.allocated - head.part.resident
        if missing <= 0 or head.waiting_since is None or not head.restores or head.evicted:
            return -math.inf
        running = sum(grant.client.part.allocated for grant in device.grants)
        if running + head.part.allocated > device.info.memory:
            return -math.inf  # theirs has to leave before
        return head.waiting_since + max(2 * head.switching.restore, missing / SLOW_LINK)
