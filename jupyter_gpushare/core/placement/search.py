"""Search for the devices of a client: filter the devices, then choose among them.

The request's labels, the tenants' topology cells and the free room decide which devices a client may have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sortedcontainers import SortedList

from ..base.errors import NoRoom, PlacementFailed, Refused, TooManyDevices
from .device_allocations import EPSILON, FULL_DEVICE, DeviceAllocations
from .guarantees import Guarantees
from .request import PlacementRequest, match_devices
from .strategies import PlacementStrategy, first_fit

_MAX_REASONS = 8  # number of devices in the message of a refusal


@dataclass(frozen=True)
class PlacementQuery:
    """A request with its tenant, and with the facts for the search that follow from it."""

    request: PlacementRequest
    tenant: str  # "": none
    uses_own_cells: bool  # the tenant has cells, and the client stays within them
    named_devices: frozenset[str] | None  # the devices that the request names; None: all
    size: int  # thousandths that the client takes of the smallest device
    together: Mapping[str, int]  # the working devices that have clients with the request's affinity, with their number
    among: Callable[[DeviceAllocations], bool] | None = None  # condition of the devices; None: all


class PlacementSearch:
    """Allocations of all devices. Each device is in the pool of the tenant that is guaranteed it, or in the pool ""."""

    def __init__(self, strategy: Callable[[], PlacementStrategy], oversubscription: float | None) -> None:
        self.allocations: dict[str, DeviceAllocations] = {}
        self.schedulable_devices: dict[str, DeviceAllocations] = {}  # the devices that clients may get
        self.guarantees: Guarantees | None = None
        self.oversubscription = oversubscription
        self._strategy = strategy
        self._pools: dict[str, PlacementStrategy] = {}
        self._pool_of: dict[str, str] = {}
        self._affinities: dict[str, dict[str, int]] = {}  # by label and device: the number of clients
        self._smallest = 0  # bytes of the smallest device
        self._shares: SortedList[tuple[float, str]] = SortedList()  # guaranteed share of each device
        self._share_of: dict[str, float] = {}

    def owner(self, uuid: str) -> str:
        """Return the tenant that is guaranteed the device at present; empty: none."""
        return self.guarantees.owner(uuid) if self.guarantees else ""

    def display_name(self, uuid: str) -> str:
        """Return the index and the name of a device, for users."""
        device = self.allocations[uuid]
        return f"device {device.order} ({device.name or device.uuid})"

    # --- devices and clients

    def reconfigure(self, strategy: Callable[[], PlacementStrategy], oversubscription: float | None) -> None:
        """Apply other settings to the same devices and clients."""
        self._strategy, self.oversubscription = strategy, oversubscription
        self._pools.clear()
        self._pool_of.clear()
        self.refresh_pools()

    def update_info(self, device: DeviceAllocations, name: str, memory: int) -> None:
        """Update the name and the memory of a device, and the size of the smallest device."""
        before = device.memory
        device.update_info(name, memory)
        if device.uuid in self.schedulable_devices:
            sizes = [self._smallest, memory]
            if before not in (0, memory):
                sizes = [one.memory for one in self.schedulable_devices.values()]
            self._smallest = min(filter(None, sizes), default=0)

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
        """Update each of the devices (None: all) in the pool of its present owner."""
        for uuid in self.schedulable_devices if uuids is None else uuids:
            device = self.schedulable_devices.get(uuid)
            if device is None:
                continue  # in the topology only, or not schedulable
            owner = self.owner(uuid)
            before = self._pool_of.get(uuid)
            if before is not None and before != owner:
                self._pools[before].remove(device)
            self._pool_of[uuid] = owner
            self._pool(owner).update(device)
            if self._share_of.get(uuid) != device.guaranteed_share:
                if uuid in self._share_of:
                    self._shares.remove((self._share_of[uuid], uuid))
                self._share_of[uuid] = device.guaranteed_share
                self._shares.add((device.guaranteed_share, uuid))

    def _pool(self, owner: str) -> PlacementStrategy:
        if owner not in self._pools:
            self._pools[owner] = self._strategy()
        return self._pools[owner]

    # --- choosing

    def size_of(self, request: PlacementRequest) -> int:
        """Return the size of the request in thousandths of the smallest device."""
        return round(request.size_on(self._smallest) * FULL_DEVICE)

    def find(
        self,
        request: PlacementRequest,
        tenant: str,
        has_cells: bool,
        among: Callable[[DeviceAllocations], bool] | None = None,
    ) -> tuple[str, ...]:
        """Return devices for the request. Raises Refused, with the reason against each device, and TooManyDevices."""
        if request.gpus > 1:
            self._check_count(request)
        own = has_cells and self.guarantees is not None and request.service != "offline"
        named, together = self.named_devices(request), self._devices_together(request.affinity)
        query = PlacementQuery(request, tenant, own, named, self.size_of(request), together, among)
        if self.guarantees:
            self.refresh_pools(self.guarantees.move_slots_away_from_guests(tenant))

        def with_room(device: DeviceAllocations) -> bool:
            return device.has_room(request) and not self._rejection_reason(device, query)

        def within_bound(device: DeviceAllocations) -> bool:
            return not device.missing_memory(request, self.oversubscription) and not self._rejection_reason(
                device, query
            )

        # Most refusals are for lack of share, and need no search.
        if self._shares.bisect_right((1 - request.share + EPSILON, "~")) >= request.gpus:
            for fits, room in ((with_room, True), (within_bound, False)):
                found = self._find_with(query, fits, room)
                if found:
                    return tuple(sorted(device.uuid for device in found))
        raise self._refusal(query)

    def _devices_together(self, affinity: str) -> dict[str, int]:
        """Return the working devices that have clients with this affinity, with the number of these."""
        on = self._affinities.get(affinity, {}) if affinity else {}
        return {uuid: count for uuid, count in on.items() if not self.allocations[uuid].failure}

    def _check_count(self, request: PlacementRequest) -> None:
        suitable = [device for device in self.schedulable_devices.values() if device.suits_count(request)]
        if request.gpus > len(suitable):
            names = ", ".join(sorted(device.name or device.uuid for device in suitable)) or "none"
            without = " without MIG slices" if len(suitable) < len(self.schedulable_devices) else ""
            raise TooManyDevices(f"gpus={request.gpus} is more than there are here{without}: {len(suitable)} ({names})")

    def _find_with(
        self, query: PlacementQuery, fits: Callable[[DeviceAllocations], bool], room: bool
    ) -> tuple[DeviceAllocations, ...] | None:
        request, size, gpus = query.request, query.size, query.request.gpus
        if query.together:
            return self._affine_devices([self.allocations[uuid] for uuid in query.together], size, gpus, fits)
        default_pool = self._pool("")
        if query.named_devices is not None:
            return first_fit(
                default_pool.sort((self.allocations[uuid] for uuid in query.named_devices), size), gpus, fits
            )
        if self.guarantees and request.service == "offline":
            return self._choose_from_all(query, fits, room)
        found = self._pool(query.tenant if query.uses_own_cells else "").choose(size, gpus, fits, room)
        if found or query.uses_own_cells or not self.guarantees:
            return found
        return self._choose_from_all(query, fits, room)

    def _choose_from_all(
        self, query: PlacementQuery, fits: Callable[[DeviceAllocations], bool], room: bool
    ) -> tuple[DeviceAllocations, ...] | None:
        """Return devices of any pool. A single device is the best one of the best devices of the pools."""
        devices: Iterable[DeviceAllocations] = self.schedulable_devices.values()
        if query.request.gpus == 1 and self.guarantees:
            pools = dict.fromkeys(("", query.tenant, *sorted(self.guarantees.tenants_with_idle_cells())))
            chosen = (self._pools[name].choose(query.size, 1, fits, room) for name in pools if name in self._pools)
            devices = [found[0] for found in chosen if found]
        return first_fit(self._pool("").sort(devices, query.size), query.request.gpus, fits)

    def _affine_devices(
        self, holders: list[DeviceAllocations], size: int, gpus: int, fits: Callable[[DeviceAllocations], bool]
    ) -> tuple[DeviceAllocations, ...] | None:
        """Return devices of clients with the same affinity, with other devices only if these are not enough."""
        first = self._pool("").sort(holders, size)
        if gpus <= len(first):
            return first_fit(first, gpus, fits)
        if not all(fits(device) for device in first):
            return None
        others = [
            device
            for device in self.schedulable_devices.values()
            if device not in holders and device.node == first[0].node
        ]
        rest = first_fit(self._pool("").sort(others, size), gpus - len(first), fits)
        return None if rest is None else (*first, *rest)

    def _rejection_reason(self, device: DeviceAllocations, query: PlacementQuery) -> str:
        request, tenant = query.request, query.tenant
        if query.named_devices is not None and device.uuid not in query.named_devices:
            return "is not among the devices asked for"
        if query.among is not None and not query.among(device):
            return "is not among the devices to choose from"
        if self.guarantees:
            if query.uses_own_cells and self.guarantees.owner(device.uuid) != tenant:
                return f"is not among the cells of tenant {tenant!r}"
            if not self.guarantees.admits(device.uuid, tenant):
                return f"is in use by tenant {self.guarantees.owner(device.uuid)!r}, which is guaranteed it"
        if query.together and request.gpus <= len(query.together) and device.uuid not in query.together:
            return f"has no client with affinity={request.affinity}"
        return device.rejection_reason(request)

    def devices_named(self, word: str) -> list[str]:
        """Return the devices with that UUID, else index, else beginning of the UUID, else part of the name.

        The list is empty if clients may get no such device.
        """
        devices = self.schedulable_devices.values()
        return match_devices(word, [(device.uuid, str(device.order), device.name) for device in devices])

    def named_devices(self, request: PlacementRequest) -> frozenset[str] | None:
        """Return the devices that the request names. Raises Refused for a device that does not exist."""
        if not request.devices:
            return None
        found: set[str] = set()
        for name in request.devices:
            match = self.devices_named(name)
            if not match:
                known = "; ".join(map(self.display_name, self.schedulable_devices))
                raise PlacementFailed(
                    f"device={name!r} does not exist: allowed are UUIDs, indexes and names of {known}"
                )
            found.update(match)
        if len(found) < request.gpus:
            names = "+".join(request.devices)
            raise TooManyDevices(f"gpus={request.gpus} is more than device={names} names: {len(found)}")
        return frozenset(found)

    def _refusal(self, query: PlacementQuery) -> Refused:
        request, reasons = query.request, []
        asked = [
            device
            for device in self.schedulable_devices.values()
            if (query.named_devices is None or device.uuid in query.named_devices)
            and (query.among is None or query.among(device))
        ]
        for device in asked[:_MAX_REASONS]:
            reason = self._rejection_reason(device, query) or device.missing_memory(request, self.oversubscription)
            reasons.append(f"{self.display_name(device.uuid)} {reason or 'is free, but too few other devices are'}")
        shown = "; ".join(reasons) + (f"; and {len(asked) - _MAX_REASONS} more" if len(asked) > _MAX_REASONS else "")
        error = NoRoom if self._admits_later(asked, query) else PlacementFailed
        return error(f"no {request.gpus} device{'s' if request.gpus > 1 else ''} for {request}: {shown}")

    def _admits_later(self, devices: Iterable[DeviceAllocations], query: PlacementQuery) -> bool:
        """Return whether enough devices of one node would take the request without their present clients."""
        nodes: Counter[str] = Counter()
        for device in devices:
            if query.uses_own_cells and self.owner(device.uuid) != query.tenant:
                continue
            if device.admits_when_empty(query.request, self.oversubscription):
                nodes[device.node] += 1
                if nodes[device.node] == query.request.gpus:
                    return True
        return False
