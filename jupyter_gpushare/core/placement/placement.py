"""Placement of clients on devices: the interface of this package.

`Placement` has the devices, the placed clients, the tenants and the guaranteed cells. A `Placement` chooses the devices
of a new client, checks changes of a placed client, and reacts to devices that fail or recover.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

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
        """Number of devices with its share: as many as it asked for, or more if its processes use more."""
        return max(self.request.gpus, len(self.devices))


class Placement:
    """Placement of all clients. A call that raises has changed nothing."""

    def __init__(self, settings: PlacementSettings | None = None) -> None:
        """Start without devices and clients. Raises Refused, as `configure` does."""
        self.settings = settings or PlacementSettings()
        self.placed: dict[str, PlacedClient] = {}
        self.unmet_guarantees = ""  # the reason why the tenants' cells are not guaranteed; empty: they are
        self.tenants = Tenants(self.settings.tenants)
        self._typical_requests = TypicalRequests()
        self._search = PlacementSearch(self._strategy(self.settings), self.settings.oversubscription)
        self._tree, self.guarantees = self._build_guarantees(self.settings)

    @property
    def allocations(self) -> dict[str, DeviceAllocations]:
        """Allocations by device."""
        return self._search.allocations

    @property
    def schedulable_devices(self) -> dict[str, DeviceAllocations]:
        """The part of `allocations` that new clients may get."""
        return self._search.schedulable_devices

    @property
    def guarantees(self) -> Guarantees | None:
        """Guarantees of the tenants' cells; None: no tenant has any."""
        return self._search.guarantees

    @guarantees.setter
    def guarantees(self, guarantees: Guarantees | None) -> None:
        self._search.guarantees = guarantees

    # --- settings and devices

    def configure(self, settings: PlacementSettings) -> None:
        """Apply other settings. Raises Refused if the topology has no place for all cells of the tenants."""
        if settings == self.settings:
            return
        self._tree, self.guarantees = self._build_guarantees(settings)
        self.settings, self.unmet_guarantees = settings, ""
        self.tenants = Tenants(settings.tenants)
        for client, placed in self.placed.items():
            self.tenants.add(client, placed.tenant, placed.request.share, placed.device_count)
        for device in self.allocations.values():
            self._set_cell_paths(device)
        self._search.reconfigure(self._strategy(settings), settings.oversubscription)

    def add_node(self, name: str, parts: Mapping[str, Any]) -> None:
        """Add a node with its parts to a topology (`TopologyTree`), before its devices. Raises Refused."""
        if self._tree is None:
            raise Refused("nodes come only to a topology")
        root = self._tree.add_node(name, parts)
        if self.guarantees:
            self.guarantees.add_node(root)

    def add_device(self, uuid: str, name: str, memory: int, is_unverified: bool = False, parent: str = "") -> None:
        """Add a device, or update it. An unverified device is offered to no client. `parent`: the GPU of a MIG slice.

        Otherwise a process could keep clients from the GPU by inventing a device.
        """
        device = self.allocations.get(uuid)
        if device is None:
            device = self.allocations[uuid] = DeviceAllocations(uuid, name, memory, len(self.allocations), parent)
            if not is_unverified:
                self.schedulable_devices[uuid] = device
            is_flat = self.settings.topology is None and bool(self.tenants.guarantees())
            if is_flat:
                try:
                    self._tree, self.guarantees = self._build_guarantees(self.settings)
                    self.unmet_guarantees = ""
                except Refused as error:
                    self.guarantees, self.unmet_guarantees = None, str(error)
            self._set_cell_paths(device)
            if is_flat:
                self._search.refresh_pools()
            else:
                self._repair(lambda guarantees: guarantees.recover(uuid))
        self._search.update_info(device, name, memory)
        self._search.refresh_pools((uuid,))

    def fail(self, uuid: str, reason: str) -> tuple[str, ...]:
        """Mark the device as failed, so that new clients avoid it. Returns the clients that are on it."""
        device = self.allocations[uuid]
        device.failure = reason or "unknown reason"
        self._repair(lambda guarantees: guarantees.fail(uuid))
        return tuple(device.clients)

    def recover(self, uuid: str) -> tuple[str, ...]:
        """Mark the device as working. Returns the clients that are on it."""
        device = self.allocations[uuid]
        device.failure = ""
        self._repair(lambda guarantees: guarantees.recover(uuid))
        return tuple(device.clients)

    def set_loads(self, loads: Mapping[str, int]) -> None:
        """Set the load of each device, for the strategies that consider it. A device without entry has no load."""
        changed = [device for device in self.allocations.values() if device.load != loads.get(device.uuid, 0)]
        for device in changed:
            device.load = loads.get(device.uuid, 0)
        self._search.refresh_pools(device.uuid for device in changed)

    # --- clients

    def place(
        self,
        client: str,
        request: PlacementRequest,
        tenant: str = "",
        quota: Quota | None = None,
        among: Callable[[DeviceAllocations], bool] | None = None,
    ) -> tuple[str, ...]:
        """Choose devices for a new client, `among` those of this condition; none if no device is known yet.

        Raises Refused, with the reason against each device, and TooManyDevices.
        """
        known = self.tenants.get(tenant)
        devices: tuple[str, ...] = ()
        if self.schedulable_devices:
            devices = self._search.find(request, tenant, known is not None and known.has_cells, among)
        placed = PlacedClient(request, tenant, devices)
        if quota:
            if devices and request.fraction is not None:
                quota = replace(quota, memory=self.memory_limit_of(placed))
            self.tenants.check(client, tenant, quota, request.gpus)
        self._assign(client, placed)
        self._typical_requests.add(self._search.size_of(request), request.gpus)
        return devices

    def register_existing(
        self, client: str, request: PlacementRequest, tenant: str = "", devices: tuple[str, ...] = ()
    ) -> None:
        """Add a client that runs already, whatever room is left. A later `move` sets other devices."""
        self._assign(client, PlacedClient(request, tenant, devices))

    def named_devices(self, name: str) -> frozenset[str]:
        """Return the devices of this UUID, index or name. Raises Refused without any."""
        if not name.strip():
            raise Refused("the name of a device is empty: allowed are a UUID, an index and a name")
        return self._search.named_devices(PlacementRequest(devices=(name,))) or frozenset()

    def find_other(self, client: str, name: str) -> str:
        """Return a device of this UUID, index or name, on which the client is not, and could be placed.

        Raises Refused.
        """
        placed = self.placed[client]
        others = tuple(sorted(self.named_devices(name) - {*placed.devices}))
        if not others:
            raise Refused(f"the client is on device {placed.devices[0]} already")
        known = self.tenants.get(placed.tenant)
        self._search.remove(client, placed.request, placed.devices)  # its own labels do not bind it to its device
        try:
            request = replace(placed.request, devices=others)
            return self._search.find(request, placed.tenant, known is not None and known.has_cells)[0]
        finally:
            self._search.add(client, placed.request, placed.devices)

    def names_devices(self, client: str) -> bool:
        """Return whether the client has asked for devices by UUID, index or name."""
        return bool(self.placed[client].request.devices)

    def move(self, client: str, devices: tuple[str, ...]) -> bool:
        """Set the devices that the client uses, whatever was chosen, and return whether it keeps its guaranteed share.

        The client loses the share if its tenant's ceiling does not allow the share on so many devices.
        """
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
        """Change the client's share or memory on the devices that it has. Raises Refused."""
        placed = self.placed[client]
        if quota:
            self.tenants.check(client, placed.tenant, quota, placed.device_count)
        if placed.request.service == "offline" and request.service != "offline":
            self.tenants.check_online(client, placed.tenant)
        if request.share > placed.request.share:
            for uuid in placed.devices:
                if lack := self.allocations[uuid].missing_share(request.share, placed.request.share):
                    raise Refused(f"share={request.share:g} is not available: {self._search.display_name(uuid)} {lack}")
        self.remove(client)
        self._assign(client, replace(placed, request=request))

    def reassign_tenant(self, client: str, tenant: str) -> None:
        """Set the tenant of the client, which stays on its devices."""
        placed = self.placed[client]
        if placed.tenant != tenant:
            self.remove(client)
            self._assign(client, replace(placed, tenant=tenant))

    def remove(self, client: str) -> None:
        placed = self.placed.pop(client)
        self.tenants.remove(client)
        self._search.remove(client, placed.request, placed.devices)
        self._repair(lambda guarantees: guarantees.unbind(client, placed.devices))

    def _assign(self, client: str, placed: PlacedClient) -> None:
        self.placed[client] = placed
        self.tenants.add(client, placed.tenant, placed.request.share, placed.device_count)
        if self.guarantees:
            self.guarantees.bind(client, placed.tenant, placed.devices)
        self._search.add(client, placed.request, placed.devices)

    # --- reading

    @property
    def guests_to_preempt(self) -> set[str]:
        """Clients that must give way at once, because a tenant has claimed their devices by its guarantee."""
        return self.guarantees.guests_to_preempt() if self.guarantees else set()

    def memory_limit_of(self, placed: PlacedClient) -> int | None:
        """Return the bytes that the client may allocate on its devices together; None: no bound of its own."""
        return placed.request.total_bytes(tuple(self.allocations[uuid].memory for uuid in placed.devices))

    def devices_named(self, word: str) -> list[str]:
        """Return the UUIDs of the devices that a user names by UUID, index or name."""
        return self._search.devices_named(word)

    def display_name(self, uuid: str) -> str:
        return self._search.display_name(uuid)

    def clients_on(self, uuid: str) -> tuple[str, ...]:
        return tuple(self.allocations[uuid].clients)

    def owner(self, uuid: str) -> str:
        """Return the tenant that is guaranteed the device at present; empty: none."""
        return self._search.owner(uuid)

    # --- guarantees

    def _build_guarantees(self, settings: PlacementSettings) -> tuple[TopologyTree | None, Guarantees | None]:
        """Build guarantees for the present devices and clients. Raises Refused, and then changes nothing."""
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
        for uuid in tree.leaves:
            if uuid not in self.allocations or self.allocations[uuid].failure:
                tree.set_failed(uuid, True)
        for client, placed in self.placed.items():
            made.bind(client, placed.tenant, placed.devices)
        made.repair()
        return tree, made

    def _set_cell_paths(self, device: DeviceAllocations) -> None:
        leaf = self._tree.leaves.get(device.uuid) if self._tree else None
        device.cell_paths = (
            (leaf.ancestor(1).path, leaf.ancestor(2).path, leaf.ancestor(3).path) if leaf else ("", "", "")
        )

    def _repair(self, repair: Callable[[Guarantees], set[str]]) -> None:
        if self.guarantees:
            self._search.refresh_pools(repair(self.guarantees))

    def _strategy(self, settings: PlacementSettings) -> Callable[[], PlacementStrategy]:
        return lambda: STRATEGIES[settings.strategy](self._typical_requests)
