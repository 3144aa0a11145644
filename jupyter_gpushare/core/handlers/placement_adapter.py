"""Between the books of placement and the clients that are placed: quotas within ceilings, guests that give way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..base.device_info import DeviceInfo
from ..base.errors import IllegalEvent, Refused
from ..base.quota import Quota
from ..interface import events as ev
from ..interface.commands import Command, NotifyUser
from ..placement import DeviceAllocations, Placement, PlacementRequest, PlacementSettings
from ..state.model import Client
from ..turns.turn_scheduler import TurnScheduler


class PlacementAdapter:
    """What the scheduler asks of placement."""

    def __init__(
        self, settings: PlacementSettings, clients: dict[str, Client], turns: TurnScheduler, out: list[Command]
    ) -> None:
        self.placement = Placement(settings)
        self._clients = clients
        self._turns = turns
        self._out = out
        self._preemptible_guests: set[str] = set()

    # --- devices

    def on_device_found(self, info: DeviceInfo) -> None:
        self.placement.add_device(info.uuid, info.name, info.memory, info.is_unverified)

    def on_device_failed(self, uuid: str, reason: str, now: float) -> None:
        """Raises IllegalEvent for a device that nobody knows."""
        book = self._allocations_of(uuid)
        if book.failure == reason:
            return
        for client in self.placement.fail(uuid, reason):
            self._notify(
                client, f"device {book.name or uuid} has failed: {reason}; a restarted kernel gets another one"
            )
        self.update_guests(now)

    def on_device_recovered(self, uuid: str, now: float) -> None:
        """Raises IllegalEvent for a device that nobody knows."""
        book = self._allocations_of(uuid)
        if not book.failure:
            return
        for client in self.placement.recover(uuid):
            self._notify(client, f"device {book.name or uuid} works again")
        self.update_guests(now)

    def _allocations_of(self, uuid: str) -> DeviceAllocations:
        if uuid not in self.placement.allocations:
            raise IllegalEvent(f"no device {uuid} is known here")
        return self.placement.allocations[uuid]

    def _notify(self, client: str, message: str) -> None:
        if client in self._clients:
            self._out.append(NotifyUser(client, message))

    # --- clients

    def admit(self, event: ev.ClientRegistered, order: int) -> Client:
        """A new client, with its devices and its quota. Raises Refused, having changed nothing.

        One whose program runs already has its devices and is never refused: it is offline, without a guaranteed share,
        and within the ceilings of one client.
        """
        quota = self.placement.tenants.with_ceilings(event.quota, event.tenant)
        request = placement_request(event.request or PlacementRequest(event.gpus), quota)
        try:
            self.placement.place(event.client, request, event.tenant, quota)
        except Refused as error:
            if not event.running:
                raise
            quota = replace(self.placement.tenants.apply_ceilings(quota, event.tenant), service="offline")
            request = placement_request(request, quota)
            self.placement.register_existing(event.client, request, event.tenant)
            self._out.append(NotifyUser(event.client, f"it is offline and has no guaranteed share: {error}"))
        client = Client(event.client, event.user, event.label, quota, request.gpus, order)
        self._resolve_memory_fraction(client)
        return client

    def restart(self, client: Client, now: float) -> None:
        """Its program starts anew: elsewhere, if that can be, when its devices have failed or it must give way."""
        placed = self.placement.placed[client.id]
        failed = any(self.placement.allocations[uuid].failure for uuid in placed.devices)
        if client.processes or not (failed or client.is_preemptible_guest):
            return
        self.placement.remove(client.id)
        try:
            self.placement.place(client.id, placed.request, placed.tenant, client.quota)
        except Refused:
            self.placement.register_existing(client.id, placed.request, placed.tenant)
            self.placement.move(client.id, placed.devices)
            return
        self._turns.set_devices(client, self.devices_of(client), now)
        self._resolve_memory_fraction(client)
        self.update_guests(now)

    def devices_of(self, client: Client) -> tuple[str, ...]:
        return self.placement.placed[client.id].devices

    def on_devices_changed(self, client: Client, devices: tuple[str, ...], now: float) -> None:
        """The client's processes use these devices."""
        if not self.placement.move(client.id, devices):
            client.quota = replace(client.quota, share=0.0)
            self._turns.apply_quota(client, now)
            self._notify(
                client.id, "it has no guaranteed share: on all its devices that is more than its tenant may have"
            )
        self._resolve_memory_fraction(client)
        self.update_guests(now)

    def change_quota(self, client: Client, quota: Quota) -> None:
        """Raises Refused, having changed nothing, when the client cannot have that quota where it is."""
        request = self.placement.placed[client.id].request
        if quota.memory != client.quota.memory:
            request = replace(request, fraction=None)
        self.placement.change(client.id, placement_request(request, quota), quota)

    def reassign_tenants(self, tenants: Mapping[str, str], now: float) -> None:
        """Which tenant each client belongs to by now. What it has already it keeps; what it asks for is checked."""
        for client, tenant in tenants.items():
            if client in self._clients:
                self.placement.reassign_tenant(client, tenant)
        self.update_guests(now)

    def remove(self, client: Client, now: float) -> None:
        self.placement.remove(client.id)
        self.update_guests(now)

    def update_guests(self, now: float) -> None:
        """Guests on devices that their owners have claimed are treated as offline clients, and others are not."""
        to_go = self.placement.guests_to_preempt
        for identity in to_go ^ self._preemptible_guests:
            client = self._clients.get(identity)
            if client:
                client.is_preemptible_guest = identity in to_go
                self._turns.requeue(client, now)
                self._turns.mark_dirty(client)
        self._preemptible_guests = to_go

    def _resolve_memory_fraction(self, client: Client) -> None:
        """A part of its devices is a number of bytes as soon as these are known."""
        placed = self.placement.placed[client.id]
        if placed.request.fraction is not None and placed.devices:
            # A part of devices that don't say what they have is nothing, and no bound.
            quota = replace(client.quota, memory=self.placement.memory_limit_of(placed) or None)
            client.quota = self.placement.tenants.cap_memory(quota, placed.tenant)


def placement_request(request: PlacementRequest, quota: Quota) -> PlacementRequest:
    """What is asked of devices, with the share, the memory and the class of the quota."""
    memory = quota.memory if request.fraction is None else None
    return replace(request, share=quota.share, memory=memory, service=quota.service)
