"""Who may have a device at the same time: by settings, memory and demand; by trial (`sharing`), whether it pays."""

from __future__ import annotations

from collections.abc import Iterator

from .grants import Grants
from .memory import can_come
from .model import Client, Device, Grant
from .overruns import lets_in
from .settings import AUTO, EXCLUSIVE, PACKED
from .sharing import Sharing

_FULL = 1.1  # what clients who run together may ask for of a device: some of it is estimated
_UNKNOWN = 0.5  # what a client asks for of which nothing is known yet
_LONG = 30.0  # seconds of recent use
_REMEMBERED = 600.0  # seconds for which a device is taken to hold no more than when a client found it full


class Together:
    """Says who suits whom, by the books of grants and what trials have shown."""

    def __init__(self, books: Grants, sharing: Sharing) -> None:
        self._books = books
        self._sharing = sharing

    def packs(self, device: Device, client: Client) -> bool:
        """Whether the client may run beside those who have the device."""
        if client.grant:
            return False
        if not fits(device, [*(grant.client for grant in device.grants), client]):
            return False
        members = [grant.client for grant in device.grants if not self._lets_in(grant)]
        if not members:
            return True  # none of them would go for it, as slow as it may be
        if self._books.settings.sharing == EXCLUSIVE:
            return False
        if self._books.settings.sharing == PACKED:
            return True
        # Who must share a busy device is later done, and short work most of all: only what is long is tried out there.
        together = [*members, client]
        shares = any(self._books.policy.share(one) for one in together)  # turns keep them better
        unknown = 1.0 if shares else _UNKNOWN
        asked = sum(unknown if one.demand.fraction is None else one.demand.fraction for one in together)
        if asked > _FULL and len({one.rank for one in together}) == 1:
            if shares:
                return False
            used = [one.usage.at(self._books.now) for one in together]
            if min(used) < max(_LONG, max(used) / 3):
                return False
        return self._sharing.suit(device, client, members, self._books.now)

    def is_free(self, device: Device) -> bool:
        """Whether nobody has the device, or nobody whose end is still waited for."""
        return all(self._lets_in(grant) for grant in device.grants)

    def is_kept_out(self, device: Device, client: Client) -> bool:
        """Whether the client cannot have the device before an overrun there has ended."""
        late = [grant for grant in device.grants if self._lets_in(grant)]
        return bool(late) and not fits(device, [*(grant.client for grant in late), client])

    def leaving(self, device: Device, now: float) -> Iterator[Grant]:
        """Clients that ran together fit no longer, or are in each other's way: an offline one goes, or the last one."""
        running = [grant for grant in device.grants if not grant.draining]
        running.sort(key=lambda grant: grant.client.rank)
        staying = [grant for grant in device.grants if self._lets_in(grant)]
        if device.full_until <= now:
            device.full_at = None
        if len(running) + len(staying) > 1:
            self._note_shortage(device, running, staying, now)
        while running and len(running) + len(staying) > 1:
            together = len(running) == 1 or self._books.settings.sharing != EXCLUSIVE
            if together and fits(device, [grant.client for grant in (*staying, *running)]):
                break
            yield running.pop()
        loser = self._sharing.loser(device, now) if self._books.settings.sharing == AUTO and len(running) > 1 else None
        if loser and loser.grant and loser.grant in running:
            yield loser.grant

    def _note_shortage(self, device: Device, running: list[Grant], staying: list[Grant], now: float) -> None:
        """Take note of what the device holds, if running clients are short of more than the others can give up there:
        the driver takes a part of its memory, and so may programs that are not shared.
        """
        asking = [grant.client for grant in running if can_come(device, grant.client)]
        short = sum(min(client.short, client.part.allocated) for client in asking)
        leaves = device.resident - device.pinned - sum(grant.client.part.movable for grant in [*running, *staying])
        if short > leaves:
            missing = sum(grant.client.part.away for grant in running)
            device.full_at, device.full_until = device.resident + missing - short, now + _REMEMBERED

    def _lets_in(self, grant: Grant) -> bool:
        return lets_in(grant, self._books.settings, self._books.now)


def fits(device: Device, clients: list[Client]) -> bool:
    """Return whether all that the clients have, or had a turn ago, fits on the device at the same time.

    Memory of other clients that cannot leave the device counts as well.
    """
    stuck = device.pinned - sum(client.part.pinned for client in clients)
    return sum(needs(device, client) for client in clients) + stuck <= device.capacity


def needs(device: Device, client: Client) -> int:
    """Bytes on the device, and on each other one of the client's. What it asks for in vain does not count."""
    asked = client.held.allocated if client.short and can_come(device, client) else 0
    return max(*client.peaks, asked) // max(1, len(client.devices))
