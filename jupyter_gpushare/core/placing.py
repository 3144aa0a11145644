"""Between the books of placement and the clients that are placed: quotas within ceilings, guests that give way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from . import events as ev
from .commands import Command, Notice
from .errors import IllegalEvent, Refused
from .model import Client, DeviceInfo
from .placement import Book, Placement, PlacementSettings, Request
from .quota import Quota
from .turns import Turns


class Placing:
    """What the scheduler asks of placement."""

    def __init__(
        self, settings: PlacementSettings, clients: dict[str, Client], turns: Turns, out: list[Command]
    ) -> None:
        self.placement = Placement(settings)
        self._clients = clients
        self._turns = turns
        self._out = out
        self._giving_way: set[str] = set()

    # --- devices

    def found(self, info: DeviceInfo) -> None:
        self.placement.add_device(info.uuid, info.name, info.memory, info.hearsay)

    def failed(self, uuid: str, reason: str, now: float) -> None:
        """Raises IllegalEvent for a device that nobody knows."""
        book = self._book(uuid)
        if book.failed == reason:
            return
        for client in self.placement.fail(uuid, reason):
            self._tell(client, f"device {book.name or uuid} has failed: {reason}; a restarted kernel gets another one")
        self.settle(now)

    def recovered(self, uuid: str, now: float) -> None:
        """Raises IllegalEvent for a device that nobody knows."""
        book = self._book(uuid)
        if not book.failed:
            return
        for client in self.placement.recover(uuid):
            self._tell(client, f"device {book.name or uuid} works again")
        self.settle(now)

    def _book(self, uuid: str) -> Book:
        if uuid not in self.placement.books:
            raise IllegalEvent(f"no device {uuid} is known here")
        return self.placement.books[uuid]

    def _tell(self, client: str, message: str) -> None:
        if client in self._clients:
            self._out.append(Notice(client, message))

    # --- clients

    def come(self, event: ev.ClientRegistered, order: int) -> Client:
        """A new client, with its devices and its quota. Raises Refused, having changed nothing.

        One whose program runs already has its devices and is never refused: it is offline, without a guaranteed share,
        and within the ceilings of one client.
        """
        quota = self.placement.tenants.within(event.quota, event.group)
        request = request_of(event.request or Request(event.gpus), quota)
        try:
            self.placement.place(event.client, request, event.group, quota)
        except Refused as error:
            if not event.running:
                raise
            quota = replace(self.placement.tenants.capped(quota, event.group), service="offline")
            request = request_of(request, quota)
            self.placement.count(event.client, request, event.group)
            self._out.append(Notice(event.client, f"it is offline and has no guaranteed share: {error}"))
        client = Client(event.client, event.tenant, event.label, quota, request.gpus, order)
        self._read_fraction(client)
        return client

    def again(self, client: Client, now: float) -> None:
        """Its program starts anew: elsewhere, if that can be, when its devices have failed or it must give way."""
        placed = self.placement.placed[client.id]
        failed = any(self.placement.books[uuid].failed for uuid in placed.devices)
        if client.processes or not (failed or client.gives_way):
            return
        self.placement.remove(client.id)
        try:
            self.placement.place(client.id, placed.request, placed.tenant, client.quota)
        except Refused:
            self.placement.count(client.id, placed.request, placed.tenant)
            self.placement.move(client.id, placed.devices)
            return
        self._turns.place(client, self.devices_of(client), now)
        self._read_fraction(client)
        self.settle(now)

    def devices_of(self, client: Client) -> tuple[str, ...]:
        return self.placement.placed[client.id].devices

    def moved(self, client: Client, devices: tuple[str, ...], now: float) -> None:
        """The client's processes use these devices."""
        if not self.placement.move(client.id, devices):
            client.quota = replace(client.quota, share=0.0)
            self._turns.read_quota(client, now)
            self._tell(
                client.id, "it has no guaranteed share: on all its devices that is more than its tenant may have"
            )
        self._read_fraction(client)
        self.settle(now)

    def change(self, client: Client, quota: Quota) -> None:
        """Raises Refused, having changed nothing, when the client cannot have that quota where it is."""
        request = self.placement.placed[client.id].request
        if quota.memory != client.quota.memory:
            request = replace(request, fraction=None)
        self.placement.change(client.id, request_of(request, quota), quota)

    def regroup(self, groups: Mapping[str, str], now: float) -> None:
        """Which tenant each client belongs to by now. What it has already it keeps; what it asks for is checked."""
        for client, tenant in groups.items():
            if client in self._clients:
                self.placement.regroup(client, tenant)
        self.settle(now)

    def leave(self, client: Client, now: float) -> None:
        self.placement.remove(client.id)
        self.settle(now)

    def settle(self, now: float) -> None:
        """Guests on devices that their owners have claimed are treated as offline clients, and others are not."""
        to_go = self.placement.guests_to_go
        for identity in to_go ^ self._giving_way:
            client = self._clients.get(identity)
            if client:
                client.gives_way = identity in to_go
                self._turns.line_up_again(client, now)
                self._turns.touch(client)
        self._giving_way = to_go

    def _read_fraction(self, client: Client) -> None:
        """A part of its devices is a number of bytes as soon as these are known."""
        placed = self.placement.placed[client.id]
        if placed.request.fraction is not None and placed.devices:
            # A part of devices that don't say what they have is nothing, and no bound.
            quota = replace(client.quota, memory=self.placement.bytes_of(placed) or None)
            client.quota = self.placement.tenants.with_memory_capped(quota, placed.tenant)


def request_of(request: Request, quota: Quota) -> Request:
    """What is asked of devices, with the share, the memory and the class of the quota."""
    memory = quota.memory if request.fraction is None else None
    return replace(request, share=quota.share, memory=memory, service=quota.service)
