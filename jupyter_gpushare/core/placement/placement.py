"""Placement: which client is on which devices, and where the next one goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..base.errors import Refused
from ..base.quota import Quota
from .device_allocations import DeviceAllocations
from .fragmentation_strategy import TypicalRequests
from .guarantees import Guarantees
from .request import PlacementRequest
from .search import PlacementSearch
from .settings import STRATEGIES, PlacementSettings
from .strategies import PlacementStrategy
from .tenants import Tenants
from .topology_cells import TopologyTree


@dataclass(frozen=True)
class PlacedClient:
    """A client with its request, its tenant ("": none) and its devices."""

    request: PlacementRequest
    tenant: str
    devices: tuple[str, ...]

    @property
    def device_count(self) -> int:
        """On how many devices it has its share: those that it asked for, or more if its processes use more."""
        return max(self.request.gpus, len(self.devices))


class Placement:
    """The books of all devices and clients. A call that raises has changed nothing."""

    def __init__(self, settings: PlacementSettings | None = None) -> None:
        """Raises Refused, as `configure` does."""
        self.settings = settings or PlacementSettings()
        self.placed: dict[str, PlacedClient] = {}
        self.unmet_guarantees = ""  # why the tenants' cells are not guaranteed, if they are not
        self.tenants = Tenants(self.settings.tenants)
        self._typical_requests = TypicalRequests()
        self._search = PlacementSearch(self._strategy(self.settings), self.settings.oversubscription)
        self._tree, self.guarantees = self._build_guarantees(self.settings)

    @property
    def allocations(self) -> dict[str, DeviceAllocations]:
        """By device."""
        return self._search.allocations

    @property
    def schedulable_devices(self) -> dict[str, DeviceAllocations]:
        """Those of them that new clients may get."""
        return self._search.schedulable_devices

    @property
    def guarantees(self) -> Guarantees | None:
        """Whose cells are where; None: no tenant has any."""
        return self._search.guarantees

    @guarantees.setter
    def guarantees(self, guarantees: Guarantees | None) -> None:
        self._search.guarantees = guarantees

    # --- settings and devices

    def configure(self, settings: PlacementSettings) -> None:
        """Raises Refused when the tenants' cells cannot all have a place on the devices of the topology."""
        if settings == self.settings:
            return
        self._tree, self.guarantees = self._build_guarantees(settings)
        self.settings, self.unmet_guarantees = settings, ""
        self.tenants = Tenants(settings.tenants)
        for client, placed in self.placed.items():
            self.tenants.add(client, placed.tenant, placed.request.share, placed.device_count)
        for book in self.allocations.values():
            self._set_cell_paths(book)
        self._search.reconfigure(self._strategy(settings), settings.oversubscription)

    def add_device(self, uuid: str, name: str, memory: int, is_unverified: bool = False) -> None:
        """A device is known, or more is known of it. Nobody is sent to one that is only hearsay: who made it up would
        keep others from the GPU."""
        book = self.allocations.get(uuid)
        if book is None:
            book = self.allocations[uuid] = DeviceAllocations(uuid, name, memory, len(self.allocations))
            if not is_unverified:
                self.schedulable_devices[uuid] = book
            if self.settings.topology is None and self.tenants.guarantees():
                try:
                    self._tree, self.guarantees = self._build_guarantees(self.settings)
                    self.unmet_guarantees = ""
                except Refused as error:
                    self.guarantees, self.unmet_guarantees = None, str(error)
            self._set_cell_paths(book)
            self._repair(lambda guarantees: guarantees.recover(uuid))
        book.update_info(name, memory)
        self._search.update_smallest_memory()
        self._search.refresh_pools((uuid,))

    def fail(self, uuid: str, reason: str) -> tuple[str, ...]:
        """The device misbehaves and is avoided. Returns the clients that are on it."""
        book = self.allocations[uuid]
        book.failure = reason or "unknown reason"
        self._repair(lambda guarantees: guarantees.fail(uuid))
        return tuple(book.clients)

    def recover(self, uuid: str) -> tuple[str, ...]:
        """The device works again. Returns the clients that are on it."""
        book = self.allocations[uuid]
        book.failure = ""
        self._repair(lambda guarantees: guarantees.recover(uuid))
        return tuple(book.clients)

    # --- clients

    def place(
        self, client: str, request: PlacementRequest, tenant: str = "", quota: Quota | None = None
    ) -> tuple[str, ...]:
        """Choose devices for a new client; none if no device is known yet. Raises Refused, saying what stands against
        each device, and TooManyDevices."""
        known = self.tenants.get(tenant)
        devices: tuple[str, ...] = ()
        if self.schedulable_devices:
            devices = self._search.find(request, tenant, known is not None and known.has_cells)
        placed = PlacedClient(request, tenant, devices)
        if quota:
            if devices and request.fraction is not None:
                quota = replace(quota, memory=self.memory_limit_of(placed))
            self.tenants.check(client, tenant, quota, request.gpus)
        self._assign(client, placed)
        self._typical_requests.add(self._search.size_of(request), request.gpus)
        return devices

    def register_existing(self, client: str, request: PlacementRequest, tenant: str = "") -> None:
        """The client is there already, whatever is left; where, its processes will tell (`move`)."""
        self._assign(client, PlacedClient(request, tenant, ()))

    def move(self, client: str, devices: tuple[str, ...]) -> bool:
        """The client uses these devices, whatever was chosen for it. Returns whether it keeps its guaranteed share: not
        on more devices than its tenant's ceiling allows."""
        before = self.placed[client]
        if set(before.devices) == set(devices):
            return True
        placed = replace(before, devices=devices)
        grows = placed.device_count > before.device_count
        keeps = not grows or self.tenants.has_share(client, placed.tenant, placed.request.share, placed.device_count)
        if not keeps:
            placed = replace(placed, request=replace(placed.request, share=0.0))
        self.remove(client)
        self._assign(client, placed)
        return keeps

    def change(self, client: str, request: PlacementRequest, quota: Quota | None = None) -> None:
        """Its share or memory is another now; it stays where it is. Raises Refused."""
        placed = self.placed[client]
        if quota:
            self.tenants.check(client, placed.tenant, quota, placed.device_count)
        if placed.request.service == "offline" and request.service != "offline":
            self.tenants.check_online(client, placed.tenant)
        if request.share > placed.request.share:
            for uuid in placed.devices:
                if lack := self.allocations[uuid].missing_share(request.share, placed.request.share):
                    raise Refused(f"share={request.share:g} is not to be had: {self._search.display_name(uuid)} {lack}")
        self.remove(client)
        self._assign(client, replace(placed, request=request))

    def reassign_tenant(self, client: str, tenant: str) -> None:
        """The client belongs to that tenant from now on; it stays where it is."""
        placed = self.placed[client]
        if placed.tenant != tenant:
            self.remove(client)
            self._assign(client, replace(placed, tenant=tenant))

    def remove(self, client: str) -> None:
        placed = self.placed.pop(client)
        self.tenants.remove(client)
        if self.guarantees:
            self.guarantees.unbind(client, placed.devices)
        self._search.remove(client, placed.request, placed.devices)
        if self.guarantees and self.guarantees.failed_devices:
            self._repair(lambda guarantees: guarantees.repair())

    def _assign(self, client: str, placed: PlacedClient) -> None:
        self.placed[client] = placed
        self.tenants.add(client, placed.tenant, placed.request.share, placed.device_count)
        if self.guarantees:
            self.guarantees.bind(client, placed.tenant, placed.devices)
        self._search.add(client, placed.request, placed.devices)

    # --- reading

    @property
    def guests_to_preempt(self) -> set[str]:
        """Clients on devices that a tenant has claimed by its guarantee: they must give way at once."""
        return self.guarantees.guests_to_preempt() if self.guarantees else set()

    def memory_limit_of(self, placed: PlacedClient) -> int | None:
        """What it may allocate on its devices together; None: no bound of its own."""
        return placed.request.total_bytes(tuple(self.allocations[uuid].memory for uuid in placed.devices))

    def clients_on(self, uuid: str) -> tuple[str, ...]:
        return tuple(self.allocations[uuid].clients)

    def owner(self, uuid: str) -> str:
        """The tenant that is guaranteed the device at present; empty: nobody."""
        return self._search.owner(uuid)

    # --- guarantees

    def _build_guarantees(self, settings: PlacementSettings) -> tuple[TopologyTree | None, Guarantees | None]:
        """For the present devices and clients. Raises Refused, having changed nothing."""
        cells = Tenants(settings.tenants).guarantees()
        if settings.topology is not None:
            tree = TopologyTree(settings.topology)
        elif cells and self.schedulable_devices:
            tree = TopologyTree.flat(self.schedulable_devices)
        else:
            return None, None
        if not cells:
            return tree, None
        made = Guarantees(tree, cells)
        made.failed_devices = {
            uuid for uuid in tree.leaves if uuid not in self.allocations or self.allocations[uuid].failure
        }
        for client, placed in self.placed.items():
            made.bind(client, placed.tenant, placed.devices)
        made.repair()
        return tree, made

    def _set_cell_paths(self, book: DeviceAllocations) -> None:
        leaf = self._tree.leaves.get(book.uuid) if self._tree else None
        book.cell_paths = (
            (leaf.ancestor(1).path, leaf.ancestor(2).path, leaf.ancestor(3).path) if leaf else ("", "", "")
        )

    def _repair(self, repair: Callable[[Guarantees], set[str]]) -> None:
        if self.guarantees:
            repair(self.guarantees)
            self._search.refresh_pools()

    def _strategy(self, settings: PlacementSettings) -> Callable[[], PlacementStrategy]:
        return lambda: STRATEGIES[settings.strategy](self._typical_requests)
