"""Adapter between the scheduler and placement.

The adapter admits, moves and removes clients, and keeps quotas within ceilings. The adapter reports failed devices to
users, and treats guests on claimed devices as offline clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from ..base.device_info import DeviceInfo
from ..base.errors import IllegalEvent, Refused
from ..base.quota import Quota
from ..interface import events as ev
from ..interface.commands import Command, NotifyUser, UpdateQuota
from ..placement import DeviceAllocations, Placement, PlacementRequest, PlacementSettings
from ..state.model import Client, Device
from ..turns.grant_table import GrantTable

_JOIN_SECONDS = 60.0  # from a request for devices, in which the process is expected to join
_RECENT_SECONDS = 60.0  # since its last work, for which a client counts as load of its devices
_LOAD_AT_WORK = 2  # of one client at work


class PlacementAdapter:
    """Adapter through which the scheduler uses placement."""

    def __init__(
        self, settings: PlacementSettings, clients: dict[str, Client], table: GrantTable, commands: list[Command]
    ) -> None:
        self.placement = Placement(settings)
        self._clients = clients
        self._table = table
        self._commands = commands
        self._preemptible_guests: set[str] = set()

    # --- devices

    def on_device_found(self, info: DeviceInfo) -> None:
        self.placement.add_device(info.uuid, info.name, info.memory, info.is_unverified, info.parent)

    def on_device_failed(self, uuid: str, reason: str, now: float, move: Callable[[Client, str], None] | None) -> None:
        """Mark the device as failed. Raises IllegalEvent for an unknown device.

        Clients without processes get other devices, as far as possible, and all other clients of the device a message.
        `move` begins the move of a client that can leave the device; None: the device does not work.
        """
        device = self._allocations_of(uuid)
        if device.failure == reason:
            return
        for identity in self.placement.fail(uuid, reason):
            client = self._clients.get(identity)
            if client and not client.processes:
                self._place_again(client, now)
            if client and move and (other := self._device_after_failure(client)[0]):
                move(client, other)
            if client and uuid in self.placement.placed[identity].devices:
                self._notify(
                    identity, f"device {device.name or uuid} has failed: {reason}; {self.failure_remedy(client)}"
                )
        self.update_guests(now)

    def on_device_recovered(self, uuid: str, now: float) -> None:
        """Mark the device as working, and notify its clients. Raises IllegalEvent for an unknown device."""
        device = self._allocations_of(uuid)
        if not device.failure:
            return
        for client in self.placement.recover(uuid):
            self._notify(client, f"device {device.name or uuid} works again")
        self.update_guests(now)

    def _allocations_of(self, uuid: str) -> DeviceAllocations:
        if uuid not in self.placement.allocations:
            raise IllegalEvent(f"there is no device {uuid}")
        return self.placement.allocations[uuid]

    def _notify(self, client: str, message: str) -> None:
        if client in self._clients:
            self._commands.append(NotifyUser(client, message))

    # --- clients

    def admit(self, event: ev.ClientRegistered, order: int) -> Client:
        """Return a new client with its devices and its quota. Raises Refused, and then changes nothing.

        A client whose program runs already has its devices, and is never refused. If placement refuses such a client,
        the client is offline, without a guaranteed share, and within the ceilings of one client.
        """
        quota = self.placement.tenants.with_ceilings(event.quota, event.tenant)
        request = (event.request or PlacementRequest(event.gpus)).with_quota(quota)
        try:
            self.placement.place(event.client, request, event.tenant, quota)
        except Refused as error:
            if not event.running:
                raise
            quota = replace(self.placement.tenants.apply_ceilings(quota, event.tenant), service="offline")
            request = request.with_quota(quota)
            self.placement.register_existing(event.client, request, event.tenant)
            self._commands.append(
                NotifyUser(
                    event.client, f"offline and without a guaranteed share, because its request was refused: {error}"
                )
            )
        client = Client(event.client, event.user, event.label, quota, request.gpus, order)
        self._resolve_memory_fraction(client)
        return client

    def restart(self, client: Client, now: float) -> None:
        """Place the client again when its program restarts, if a device has failed or the client must give way."""
        if not client.processes:
            client.is_placed = False  # the user may choose the devices of the next process
        placed = self.placement.placed[client.id]
        failed = any(self.placement.allocations[uuid].failure for uuid in placed.devices)
        if not client.processes and (failed or client.is_preemptible_guest):
            self._place_again(client, now)

    def bind(self, client: Client, now: float) -> None:
        """Choose the devices of a client without processes by the work that other clients have now.

        A process of the client is about to initialise CUDA. The process gets the devices of the client's other
        processes, also of processes that have requested devices and have not joined yet.
        """
        if client.processes or now - client.bound_at < _JOIN_SECONDS:
            return
        self.placement.set_loads(self._loads_of_others(client, now))
        self._place_again(client, now)
        self.placement.set_loads({})  # a registration counts clients only, because the work will have changed by then
        client.bound_at, client.is_placed = now, True

    def device_without_work(self, client: Client, now: float) -> str | None:
        """Return a device without work that the client could move to, of the type of its one device.

        None: there is no such device, the client's user has chosen its device, or no other client is at work on it. A
        driver may not answer on a device that has failed.
        """
        (here,) = client.device_bindings
        if self.placement.allocations[here.info.uuid].failure:
            return None
        loads = self._loads_of_others(client, now)
        moving = [other for other in here.clients.values() if other.moving_to]  # they work on neither device
        load_here = loads[here.info.uuid] - sum(_recent_load(other, now) for other in moving)
        if self._has_chosen_device(client) or load_here < _LOAD_AT_WORK:
            return None
        return next(
            (uuid for uuid in self._devices_for_move(client, self._table.devices.values()) if not loads[uuid]), None
        )

    def device_to_share_work(self, client: Client, devices: Iterable[Device]) -> str | None:
        """Return the first of `devices` to which the client could move; None: there is none.

        A client stays on a device that its user has chosen, and on one that has failed.
        """
        if self._has_chosen_device(client):
            return None
        if any(self.placement.allocations[uuid].failure for uuid in client.devices):
            return None
        return next(self._devices_for_move(client, devices), None)

    def _has_chosen_device(self, client: Client) -> bool:
        """Return whether the client's user has chosen its device, by a request or in the program's environment."""
        return not client.is_placed or self.placement.names_devices(client.id)

    def failure_remedy(self, client: Client) -> str:
        """Return what happens to a client on a failed device, or what its user can do."""
        if client.is_moving:
            return f"the client moves to {self.placement.display_name(client.moving_to)}"
        uuid, obstacle = self._device_after_failure(client)
        if uuid is None:
            return f"restart the kernel to get another device; no move is possible, because {obstacle}"
        index = self.placement.allocations[uuid].order
        return (
            f"restart the kernel to get another device, or try %gpushare move {index} "
            f"(in a terminal: jupyter gpushare move {client.id} {index})"
        )

    def _device_after_failure(self, client: Client) -> tuple[str | None, str]:
        """Return the device with the least work to which the client may be able to move, or the reason against a move.

        The driver may refuse the move all the same.
        """
        if not client.processes:
            return None, "no other device is open to the client"
        if client.moving_to:
            return None, "the client moves or hibernates already"
        if client.suspended or client.hibernated:
            return None, f"the client is {'suspended' if client.suspended else 'hibernated'}"
        if len(client.processes) != 1 or len(client.device_bindings) != 1:
            return None, f"the client has {len(client.processes)} processes on {len(client.device_bindings)} devices"
        if client.can_spill:
            return None, "the driver moves no unified memory"
        if client.device_bindings[0].info.parent:
            return None, "the driver moves no client of a MIG slice"
        loads = self._loads_of_others(client, self._table.now)
        others = self._devices_for_move(client, self._table.devices.values())
        uuid = min(others, key=lambda uuid: loads[uuid], default=None)
        return uuid, "no other device of its type is open to the client"

    def _devices_for_move(self, client: Client, devices: Iterable[Device]) -> Iterator[str]:
        """Yield those of `devices` on which placement lets the client be, and of the type of its one device."""
        (here,) = client.device_bindings
        for device in devices:
            if device.info.name != here.info.name or device.info.parent:
                continue
            try:
                yield self.placement.find_other(client.id, device.info.uuid)
            except Refused:
                continue  # the client is on this device, or it is not for the client

    def _loads_of_others(self, client: Client, now: float) -> Counter[str]:
        """Return the work of the other clients by device: 2 for each client at work, 1 for each that was just now."""
        loads: Counter[str] = Counter()
        for other in self._clients.values():
            if other is not client and (load := _recent_load(other, now)):
                loads.update(dict.fromkeys(other.devices, load))
        return loads

    def _place_again(self, client: Client, now: float) -> None:
        placed = self.placement.placed[client.id]
        self.placement.remove(client.id)
        try:
            self.placement.place(client.id, placed.request, placed.tenant, client.quota)
        except Refused:
            self.placement.register_existing(client.id, placed.request, placed.tenant)
            self.on_devices_changed(client, placed.devices, now)
            return
        self._table.set_devices(client, self.devices_of(client), now)
        self._resolve_memory_fraction(client)
        self.update_guests(now)

    def devices_of(self, client: Client) -> tuple[str, ...]:
        return self.placement.placed[client.id].devices

    def on_devices_changed(self, client: Client, devices: tuple[str, ...], now: float) -> None:
        """Record the devices that the client's processes use.

        The client loses its guaranteed share if its tenant's ceiling does not allow the share on so many devices.
        """
        if not self.placement.move(client.id, devices):
            client.quota = replace(client.quota, share=0.0)
            self._table.apply_quota(client, now)
            self._notify(
                client.id,
                "without a guaranteed share, because its share on all its devices is above its tenant's ceiling",
            )
        self._resolve_memory_fraction(client)
        self.update_guests(now)

    def change_quota(self, client: Client, quota: Quota) -> None:
        """Change the quota of the client where it is placed. Raises Refused, and then changes nothing."""
        request = self.placement.placed[client.id].request
        if quota.memory != client.quota.memory:
            request = replace(request, fraction=None)
        self.placement.change(client.id, request.with_quota(quota), quota)

    def reassign_tenants(self, tenants: Mapping[str, str], now: float) -> None:
        """Set the tenant of each client. A client keeps what it has; later requests are checked by the new tenant."""
        for client, tenant in tenants.items():
            if client in self._clients:
                self.placement.reassign_tenant(client, tenant)
        self.update_guests(now)

    def remove(self, client: Client, now: float) -> None:
        self.placement.remove(client.id)
        self.update_guests(now)

    def update_guests(self, now: float) -> None:
        """Mark exactly the guests on claimed devices as preemptible, so that they count as offline clients."""
        guests = self.placement.guests_to_preempt
        for identity in guests ^ self._preemptible_guests:
            client = self._clients.get(identity)
            if client:
                client.is_preemptible_guest = identity in guests
                self._table.requeue(client, now)
                self._table.mark_dirty(client)
                if client.processes:
                    self._commands.append(UpdateQuota(identity))  # they place their memory by the class of service
        self._preemptible_guests = guests

    def _resolve_memory_fraction(self, client: Client) -> None:
        """Set the memory quota in bytes of a client that asks for a fraction of its devices, once these are known."""
        placed = self.placement.placed[client.id]
        if placed.request.fraction is not None and placed.devices:
            # A fraction of devices of unknown size is 0 bytes, which sets no bound.
            quota = replace(client.quota, memory=self.placement.memory_limit_of(placed) or None)
            client.quota = self.placement.tenants.cap_memory(quota, placed.tenant)


def _recent_load(client: Client, now: float) -> int:
    """Return 2 for a client at work, 1 for a client that has been at work in the last `_RECENT_SECONDS`, else 0."""
    if client.is_at_work:
        return _LOAD_AT_WORK
    ended_at = client.grant.cells_ended_at if client.grant else client.last_turn_ended_at
    last = client.bound_at if ended_at is None else max(client.bound_at, ended_at)
    return 1 if now - last < _RECENT_SECONDS else 0
