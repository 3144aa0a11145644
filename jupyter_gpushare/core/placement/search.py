"""Where a client may go, and which of these places it gets: filter, then choose.

A client of a tenant with topology cells stays within these. Others use what no tenant is guaranteed, and, as guests,
what its tenant does not use at present; offline clients use whatever is least used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sortedcontainers import SortedList

from ..base.errors import PlacementFailed, Refused, TooManyDevices
from .device_allocations import EPSILON, FULL_DEVICE, DeviceAllocations
from .guarantees import Guarantees
from .request import PlacementRequest
from .strategies import PlacementStrategy, first_fit

_MAX_REASONS = 8  # devices of a refusal


@dataclass(frozen=True)
class PlacementQuery:
    """A request, by whom, and what follows from it for the search."""

    request: PlacementRequest
    tenant: str  # "": none
    uses_own_cells: bool  # the tenant has cells, and the client stays there
    named_devices: frozenset[str] | None  # the devices asked for by name
    size: int  # thousandths that it takes of the smallest device


class PlacementSearch:
    """The books of all devices, each in the pool of the tenant that is guaranteed it at present ("": of nobody)."""

    def __init__(self, strategy: Callable[[], PlacementStrategy], oversubscription: float | None) -> None:
        self.allocations: dict[str, DeviceAllocations] = {}
        self.schedulable_devices: dict[str, DeviceAllocations] = {}  # those that clients may be sent to
        self.guarantees: Guarantees | None = None
        self.oversubscription = oversubscription
        self._strategy = strategy
        self._pools: dict[str, PlacementStrategy] = {}
        self._pool_of: dict[str, str] = {}
        self._affinities: dict[str, dict[str, int]] = {}  # by label: devices, with the number of clients
        self._smallest = 0  # bytes of the smallest device
        self._shares: SortedList[tuple[float, str]] = SortedList()  # guaranteed of each device
        self._share_of: dict[str, float] = {}

    def owner(self, uuid: str) -> str:
        """The tenant that is guaranteed the device at present; empty: nobody."""
        return self.guarantees.owner(uuid) if self.guarantees else ""

    def display_name(self, uuid: str) -> str:
        """A device, for people."""
        book = self.allocations[uuid]
        return f"device {book.order} ({book.name or book.uuid})"

    # --- the books

    def reconfigure(self, strategy: Callable[[], PlacementStrategy], oversubscription: float | None) -> None:
        """With other settings, over the same devices and clients."""
        self._strategy, self.oversubscription = strategy, oversubscription
        self._pools.clear()
        self._pool_of.clear()
        self.refresh_pools()

    def update_smallest_memory(self) -> None:
        """The memory of a device has become known."""
        self._smallest = min((book.memory for book in self.schedulable_devices.values() if book.memory), default=0)

    def add(self, client: str, request: PlacementRequest, devices: Iterable[str]) -> None:
        for uuid in devices:
            self.allocations[uuid].add(client, request)
            if (label := request.affinity) and uuid in self.schedulable_devices:
                on = self._affinities.setdefault(label, {})
                on[uuid] = on.get(uuid, 0) + 1
        self.refresh_pools(devices)

    def remove(self, client: str, request: PlacementRequest, devices: Iterable[str]) -> None:
        for uuid in devices:
            self.allocations[uuid].remove(client)
            if (label := request.affinity) and uuid in self.schedulable_devices:
                self._affinities[label][uuid] -= 1
                if not self._affinities[label][uuid]:
                    del self._affinities[label][uuid]
        self.refresh_pools(devices)

    def refresh_pools(self, uuids: Iterable[str] | None = None) -> None:
        """Each of the devices (None: all) into the pool of its owner, with what is on it now."""
        for uuid in self.schedulable_devices if uuids is None else uuids:
            book = self.schedulable_devices.get(uuid)
            if book is None:
                continue  # in the topology, but not here; or not to be offered
            owner = self.owner(uuid)
            before = self._pool_of.get(uuid)
            if before is not None and before != owner:
                self._pools[before].remove(book)
            self._pool_of[uuid] = owner
            self._pool(owner).update(book)
            if self._share_of.get(uuid) != book.guaranteed_share:
                if uuid in self._share_of:
                    self._shares.remove((self._share_of[uuid], uuid))
                self._share_of[uuid] = book.guaranteed_share
                self._shares.add((book.guaranteed_share, uuid))

    def _pool(self, owner: str) -> PlacementStrategy:
        if owner not in self._pools:
            self._pools[owner] = self._strategy()
        return self._pools[owner]

    # --- choosing

    def size_of(self, request: PlacementRequest) -> int:
        """In thousandths of the smallest device."""
        return round(request.size_on(self._smallest) * FULL_DEVICE)

    def find(self, request: PlacementRequest, tenant: str, has_cells: bool) -> tuple[str, ...]:
        """Devices for it. Raises Refused, saying what stands against each device, and TooManyDevices."""
        if request.gpus > len(self.schedulable_devices):
            names = ", ".join(sorted(book.name or book.uuid for book in self.schedulable_devices.values()))
            raise TooManyDevices(
                f"gpus={request.gpus} is more than there are here: {len(self.schedulable_devices)} ({names})"
            )
        own = has_cells and self.guarantees is not None and request.service != "offline"
        wanted = PlacementQuery(request, tenant, own, self._named_devices(request), self.size_of(request))
        if self.guarantees:
            self.refresh_pools(self.guarantees.move_slots_away_from_guests(tenant))

        def with_room(book: DeviceAllocations) -> bool:
            return book.has_room(request) and not self._rejection_reason(book, wanted)

        def within_bound(book: DeviceAllocations) -> bool:
            return not book.missing_memory(request, self.oversubscription) and not self._rejection_reason(book, wanted)

        # Most refusals are for want of share, and need no search.
        if self._shares.bisect_right((1 - request.share + EPSILON, "~")) >= request.gpus:
            for fits, room in ((with_room, True), (within_bound, False)):
                found = self._find_with(wanted, fits, room)
                if found:
                    return tuple(sorted(book.uuid for book in found))
        raise self._refusal(wanted)

    def _find_with(
        self, wanted: PlacementQuery, fits: Callable[[DeviceAllocations], bool], room: bool
    ) -> tuple[DeviceAllocations, ...] | None:
        request, size, gpus = wanted.request, wanted.size, wanted.request.gpus
        if request.affinity and (together := self._affinities.get(request.affinity)):
            return self._affine_devices([self.allocations[uuid] for uuid in together], size, gpus, fits)
        nobodys = self._pool("")
        if wanted.named_devices is not None:
            return first_fit(nobodys.sort((self.allocations[uuid] for uuid in wanted.named_devices), size), gpus, fits)
        if self.guarantees and request.service == "offline":
            return first_fit(nobodys.sort(self.schedulable_devices.values(), size), gpus, fits)
        found = self._pool(wanted.tenant if wanted.uses_own_cells else "").choose(size, gpus, fits, room)
        if found or wanted.uses_own_cells or not self.guarantees:
            return found
        return first_fit(nobodys.sort(self.schedulable_devices.values(), size), gpus, fits)

    def _affine_devices(
        self, holders: list[DeviceAllocations], size: int, gpus: int, fits: Callable[[DeviceAllocations], bool]
    ) -> tuple[DeviceAllocations, ...] | None:
        """The devices of others with the same affinity, and further ones only if these are not enough."""
        first = self._pool("").sort(holders, size)
        if gpus <= len(first):
            return first_fit(first, gpus, fits)
        if not all(fits(book) for book in first):
            return None
        others = [
            book for book in self.schedulable_devices.values() if book not in holders and book.node == first[0].node
        ]
        rest = first_fit(self._pool("").sort(others, size), gpus - len(first), fits)
        return None if rest is None else (*first, *rest)

    def _rejection_reason(self, book: DeviceAllocations, wanted: PlacementQuery) -> str:
        request, tenant = wanted.request, wanted.tenant
        if wanted.named_devices is not None and book.uuid not in wanted.named_devices:
            return "is not what was asked for"
        if self.guarantees:
            if wanted.uses_own_cells and self.guarantees.owner(book.uuid) != tenant:
                return f"is not among the cells of tenant {tenant!r}"
            if not self.guarantees.admits(book.uuid, tenant):
                return f"is in use by tenant {self.guarantees.owner(book.uuid)!r}, which is guaranteed it"
        together = self._affinities.get(request.affinity) if request.affinity else None
        if together and request.gpus <= len(together) and book.uuid not in together:
            return f"has no client with affinity={request.affinity}"
        return book.rejection_reason(request)

    def _named_devices(self, request: PlacementRequest) -> frozenset[str] | None:
        """The devices that were asked for by name. Raises Refused for one that is not there."""
        if not request.devices:
            return None
        found: set[str] = set()
        for wanted in request.devices:
            match = [uuid for uuid in self.schedulable_devices if uuid == wanted]
            match = match or [book.uuid for book in self.schedulable_devices.values() if str(book.order) == wanted]
            match = match or [uuid for uuid in self.schedulable_devices if len(wanted) >= 4 and uuid.startswith(wanted)]
            match = match or [
                book.uuid for book in self.schedulable_devices.values() if wanted.lower() in book.name.lower()
            ]
            if not match:
                known = "; ".join(map(self.display_name, self.schedulable_devices))
                raise PlacementFailed(f"device={wanted!r} is not here: allowed are UUIDs, indexes and names of {known}")
            found.update(match)
        if len(found) < request.gpus:
            names = "+".join(request.devices)
            raise TooManyDevices(f"gpus={request.gpus} is more than device={names} names: {len(found)}")
        return frozenset(found)

    def _refusal(self, wanted: PlacementQuery) -> Refused:
        request, reasons = wanted.request, []
        asked = [
            book
            for book in self.schedulable_devices.values()
            if wanted.named_devices is None or book.uuid in wanted.named_devices
        ]
        for book in asked[:_MAX_REASONS]:
            reason = self._rejection_reason(book, wanted) or book.missing_memory(request, self.oversubscription)
            reasons.append(f"{self.display_name(book.uuid)} {reason or 'is free, but not enough others beside it are'}")
        shown = "; ".join(reasons) + (f"; and {len(asked) - _MAX_REASONS} more" if len(asked) > _MAX_REASONS else "")
        return PlacementFailed(f"no {request.gpus} device{'s' if request.gpus > 1 else ''} for {request}: {shown}")
