"""Where a client may go, and which of these places it gets: filter, then choose.

A client of a tenant with topology cells stays within these. Others use what no tenant is guaranteed, and, as guests,
what its tenant does not use at present; offline clients use whatever is least used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sortedcontainers import SortedList

from ..errors import NoPlace, Refused, TooManyDevices
from .books import EPSILON, WHOLE, Book
from .choose import Strategy, pick
from .guarantees import Guarantees
from .request import Request

_SHOWN = 8  # devices of a refusal


@dataclass(frozen=True)
class Wanted:
    """A request, by whom, and what follows from it for the search."""

    request: Request
    tenant: str  # "": none
    own: bool  # the tenant has cells, and the client stays there
    named: frozenset[str] | None  # the devices asked for by name
    size: int  # thousandths that it takes of the smallest device


class Finder:
    """The books of all devices, each in the pool of the tenant that is guaranteed it at present ("": of nobody)."""

    def __init__(self, strategy: Callable[[], Strategy], oversubscription: float | None) -> None:
        self.books: dict[str, Book] = {}
        self.offered: dict[str, Book] = {}  # those that clients may be sent to
        self.guarantees: Guarantees | None = None
        self.oversubscription = oversubscription
        self._strategy = strategy
        self._pools: dict[str, Strategy] = {}
        self._pool_of: dict[str, str] = {}
        self._affinities: dict[str, dict[str, int]] = {}  # by label: devices, with the number of clients
        self._smallest = 0  # bytes of the smallest device
        self._shares: SortedList[tuple[float, str]] = SortedList()  # guaranteed of each device
        self._share_of: dict[str, float] = {}

    def owner(self, uuid: str) -> str:
        """The tenant that is guaranteed the device at present; empty: nobody."""
        return self.guarantees.owner(uuid) if self.guarantees else ""

    def called(self, uuid: str) -> str:
        """A device, for people."""
        book = self.books[uuid]
        return f"device {book.order} ({book.name or book.uuid})"

    # --- the books

    def restart(self, strategy: Callable[[], Strategy], oversubscription: float | None) -> None:
        """With other settings, over the same devices and clients."""
        self._strategy, self.oversubscription = strategy, oversubscription
        self._pools.clear()
        self._pool_of.clear()
        self.settle()

    def measure(self) -> None:
        """The memory of a device has become known."""
        self._smallest = min((book.memory for book in self.offered.values() if book.memory), default=0)

    def put(self, client: str, request: Request, devices: Iterable[str]) -> None:
        for uuid in devices:
            self.books[uuid].put(client, request)
            if (label := request.affinity) and uuid in self.offered:
                on = self._affinities.setdefault(label, {})
                on[uuid] = on.get(uuid, 0) + 1
        self.settle(devices)

    def remove(self, client: str, request: Request, devices: Iterable[str]) -> None:
        for uuid in devices:
            self.books[uuid].remove(client)
            if (label := request.affinity) and uuid in self.offered:
                self._affinities[label][uuid] -= 1
                if not self._affinities[label][uuid]:
                    del self._affinities[label][uuid]
        self.settle(devices)

    def settle(self, uuids: Iterable[str] | None = None) -> None:
        """Each of the devices (None: all) into the pool of its owner, with what is on it now."""
        for uuid in self.offered if uuids is None else uuids:
            book = self.offered.get(uuid)
            if book is None:
                continue  # in the topology, but not here; or not to be offered
            owner = self.owner(uuid)
            before = self._pool_of.get(uuid)
            if before is not None and before != owner:
                self._pools[before].remove(book)
            self._pool_of[uuid] = owner
            self._pool(owner).update(book)
            if self._share_of.get(uuid) != book.share:
                if uuid in self._share_of:
                    self._shares.remove((self._share_of[uuid], uuid))
                self._share_of[uuid] = book.share
                self._shares.add((book.share, uuid))

    def _pool(self, owner: str) -> Strategy:
        if owner not in self._pools:
            self._pools[owner] = self._strategy()
        return self._pools[owner]

    # --- choosing

    def size(self, request: Request) -> int:
        """In thousandths of the smallest device."""
        return round(request.size_on(self._smallest) * WHOLE)

    def find(self, request: Request, tenant: str, has_cells: bool) -> tuple[str, ...]:
        """Devices for it. Raises Refused, saying what stands against each device, and TooManyDevices."""
        if request.gpus > len(self.offered):
            names = ", ".join(sorted(book.name or book.uuid for book in self.offered.values()))
            raise TooManyDevices(f"gpus={request.gpus} is more than there are here: {len(self.offered)} ({names})")
        own = has_cells and self.guarantees is not None and request.service != "offline"
        wanted = Wanted(request, tenant, own, self._named(request), self.size(request))
        if self.guarantees:
            self.settle(self.guarantees.spare_guests(tenant))

        def with_room(book: Book) -> bool:
            return book.has_room(request) and not self._obstacle(book, wanted)

        def within_bound(book: Book) -> bool:
            return not book.lack_of_memory(request, self.oversubscription) and not self._obstacle(book, wanted)

        # Most refusals are for want of share, and need no search.
        if self._shares.bisect_right((1 - request.share + EPSILON, "~")) >= request.gpus:
            for fits, room in ((with_room, True), (within_bound, False)):
                found = self._search(wanted, fits, room)
                if found:
                    return tuple(sorted(book.uuid for book in found))
        raise self._refusal(wanted)

    def _search(self, wanted: Wanted, fits: Callable[[Book], bool], room: bool) -> tuple[Book, ...] | None:
        request, size, gpus = wanted.request, wanted.size, wanted.request.gpus
        if request.affinity and (together := self._affinities.get(request.affinity)):
            return self._together([self.books[uuid] for uuid in together], size, gpus, fits)
        nobodys = self._pool("")
        if wanted.named is not None:
            return pick(nobodys.among((self.books[uuid] for uuid in wanted.named), size), gpus, fits)
        if self.guarantees and request.service == "offline":
            return pick(nobodys.among(self.offered.values(), size), gpus, fits)
        found = self._pool(wanted.tenant if wanted.own else "").choose(size, gpus, fits, room)
        if found or wanted.own or not self.guarantees:
            return found
        return pick(nobodys.among(self.offered.values(), size), gpus, fits)

    def _together(
        self, holders: list[Book], size: int, gpus: int, fits: Callable[[Book], bool]
    ) -> tuple[Book, ...] | None:
        """The devices of others with the same affinity, and further ones only if these are not enough."""
        first = self._pool("").among(holders, size)
        if gpus <= len(first):
            return pick(first, gpus, fits)
        if not all(fits(book) for book in first):
            return None
        others = [book for book in self.offered.values() if book not in holders and book.node == first[0].node]
        rest = pick(self._pool("").among(others, size), gpus - len(first), fits)
        return None if rest is None else (*first, *rest)

    def _obstacle(self, book: Book, wanted: Wanted) -> str:
        request, tenant = wanted.request, wanted.tenant
        if wanted.named is not None and book.uuid not in wanted.named:
            return "is not what was asked for"
        if self.guarantees:
            if wanted.own and self.guarantees.owner(book.uuid) != tenant:
                return f"is not among the cells of tenant {tenant!r}"
            if not self.guarantees.open_to(book.uuid, tenant):
                return f"is in use by tenant {self.guarantees.owner(book.uuid)!r}, which is guaranteed it"
        together = self._affinities.get(request.affinity) if request.affinity else None
        if together and request.gpus <= len(together) and book.uuid not in together:
            return f"has no client with affinity={request.affinity}"
        return book.obstacle(request)

    def _named(self, request: Request) -> frozenset[str] | None:
        """The devices that were asked for by name. Raises Refused for one that is not there."""
        if not request.devices:
            return None
        found: set[str] = set()
        for wanted in request.devices:
            match = [uuid for uuid in self.offered if uuid == wanted]
            match = match or [book.uuid for book in self.offered.values() if str(book.order) == wanted]
            match = match or [uuid for uuid in self.offered if len(wanted) >= 4 and uuid.startswith(wanted)]
            match = match or [book.uuid for book in self.offered.values() if wanted.lower() in book.name.lower()]
            if not match:
                known = "; ".join(map(self.called, self.offered))
                raise NoPlace(f"device={wanted!r} is not here: allowed are UUIDs, indexes and names of {known}")
            found.update(match)
        if len(found) < request.gpus:
            names = "+".join(request.devices)
            raise TooManyDevices(f"gpus={request.gpus} is more than device={names} names: {len(found)}")
        return frozenset(found)

    def _refusal(self, wanted: Wanted) -> Refused:
        request, reasons = wanted.request, []
        asked = [book for book in self.offered.values() if wanted.named is None or book.uuid in wanted.named]
        for book in asked[:_SHOWN]:
            reason = self._obstacle(book, wanted) or book.lack_of_memory(request, self.oversubscription)
            reasons.append(f"{self.called(book.uuid)} {reason or 'is free, but not enough others beside it are'}")
        shown = "; ".join(reasons) + (f"; and {len(asked) - _SHOWN} more" if len(asked) > _SHOWN else "")
        return NoPlace(f"no {request.gpus} device{'s' if request.gpus > 1 else ''} for {request}: {shown}")
