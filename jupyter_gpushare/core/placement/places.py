"""Placement: which client is on which devices, and where the next one goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import Refused
from ..quota import Quota
from .books import Book
from .cells import Tree
from .choose import Strategy
from .fgd import Typical
from .finder import Finder
from .guarantees import Guarantees
from .request import Request
from .settings import STRATEGIES, PlacementSettings
from .tenants import Tenants


@dataclass(frozen=True)
class Placed:
    """A client with its request, its tenant ("": none) and its devices."""

    request: Request
    tenant: str
    devices: tuple[str, ...]

    @property
    def width(self) -> int:
        """On how many devices it has its share: those that it asked for, or more if its processes use more."""
        return max(self.request.gpus, len(self.devices))


class Placement:
    """The books of all devices and clients. A call that raises has changed nothing."""

    def __init__(self, settings: PlacementSettings | None = None) -> None:
        """Raises Refused, as `configure` does."""
        self.settings = settings or PlacementSettings()
        self.placed: dict[str, Placed] = {}
        self.unmet = ""  # why the tenants' cells are not guaranteed, if they are not
        self.tenants = Tenants(self.settings.tenants)
        self._typical = Typical()
        self._finder = Finder(self._strategy(self.settings), self.settings.oversubscription)
        self._tree, self.guarantees = self._guarantee(self.settings)

    @property
    def books(self) -> dict[str, Book]:
        """By device."""
        return self._finder.books

    @property
    def offered(self) -> dict[str, Book]:
        """Those of them that new clients may get."""
        return self._finder.offered

    @property
    def guarantees(self) -> Guarantees | None:
        """Whose cells are where; None: no tenant has any."""
        return self._finder.guarantees

    @guarantees.setter
    def guarantees(self, guarantees: Guarantees | None) -> None:
        self._finder.guarantees = guarantees

    # --- settings and devices

    def configure(self, settings: PlacementSettings) -> None:
        """Raises Refused when the tenants' cells cannot all have a place on the devices of the topology."""
        if settings == self.settings:
            return
        self._tree, self.guarantees = self._guarantee(settings)
        self.settings, self.unmet = settings, ""
        self.tenants = Tenants(settings.tenants)
        for client, placed in self.placed.items():
            self.tenants.put(client, placed.tenant, placed.request.share, placed.width)
        for book in self.books.values():
            self._locate(book)
        self._finder.restart(self._strategy(settings), settings.oversubscription)

    def add_device(self, uuid: str, name: str, memory: int, hearsay: bool = False) -> None:
        """A device is known, or more is known of it. Nobody is sent to one that is only hearsay: who made it up would
        keep others from the GPU."""
        book = self.books.get(uuid)
        if book is None:
            book = self.books[uuid] = Book(uuid, name, memory, len(self.books))
            if not hearsay:
                self.offered[uuid] = book
            if self.settings.topology is None and self.tenants.guarantees():
                try:
                    self._tree, self.guarantees = self._guarantee(self.settings)
                    self.unmet = ""
                except Refused as error:
                    self.guarantees, self.unmet = None, str(error)
            self._locate(book)
            self._heal(lambda guarantees: guarantees.recover(uuid))
        book.describe(name, memory)
        self._finder.measure()
        self._finder.settle((uuid,))

    def fail(self, uuid: str, reason: str) -> tuple[str, ...]:
        """The device misbehaves and is avoided. Returns the clients that are on it."""
        book = self.books[uuid]
        book.failed = reason or "unknown reason"
        self._heal(lambda guarantees: guarantees.fail(uuid))
        return tuple(book.clients)

    def recover(self, uuid: str) -> tuple[str, ...]:
        """The device works again. Returns the clients that are on it."""
        book = self.books[uuid]
        book.failed = ""
        self._heal(lambda guarantees: guarantees.recover(uuid))
        return tuple(book.clients)

    # --- clients

    def place(self, client: str, request: Request, tenant: str = "", quota: Quota | None = None) -> tuple[str, ...]:
        """Choose devices for a new client; none if no device is known yet. Raises Refused, saying what stands against
        each device, and TooManyDevices."""
        known = self.tenants.get(tenant)
        devices: tuple[str, ...] = ()
        if self.offered:
            devices = self._finder.find(request, tenant, known is not None and known.has_cells)
        placed = Placed(request, tenant, devices)
        if quota:
            if devices and request.fraction is not None:
                quota = replace(quota, memory=self.bytes_of(placed))
            self.tenants.check(client, tenant, quota, request.gpus)
        self._put(client, placed)
        self._typical.note(self._finder.size(request), request.gpus)
        return devices

    def count(self, client: str, request: Request, tenant: str = "") -> None:
        """The client is there already, whatever is left; where, its processes will tell (`move`)."""
        self._put(client, Placed(request, tenant, ()))

    def move(self, client: str, devices: tuple[str, ...]) -> bool:
        """The client uses these devices, whatever was chosen for it. Returns whether it keeps its guaranteed share: not
        on more devices than its tenant's ceiling allows."""
        before = self.placed[client]
        if set(before.devices) == set(devices):
            return True
        placed = replace(before, devices=devices)
        grows = placed.width > before.width
        keeps = not grows or self.tenants.has_share(client, placed.tenant, placed.request.share, placed.width)
        if not keeps:
            placed = replace(placed, request=replace(placed.request, share=0.0))
        self.remove(client)
        self._put(client, placed)
        return keeps

    def change(self, client: str, request: Request, quota: Quota | None = None) -> None:
        """Its share or memory is another now; it stays where it is. Raises Refused."""
        placed = self.placed[client]
        if quota:
            self.tenants.check(client, placed.tenant, quota, placed.width)
        if placed.request.service == "offline" and request.service != "offline":
            self.tenants.check_online(client, placed.tenant)
        if request.share > placed.request.share:
            for uuid in placed.devices:
                if lack := self.books[uuid].lack_of_share(request.share, placed.request.share):
                    raise Refused(f"share={request.share:g} is not to be had: {self._finder.called(uuid)} {lack}")
        self.remove(client)
        self._put(client, replace(placed, request=request))

    def regroup(self, client: str, tenant: str) -> None:
        """The client belongs to that tenant from now on; it stays where it is."""
        placed = self.placed[client]
        if placed.tenant != tenant:
            self.remove(client)
            self._put(client, replace(placed, tenant=tenant))

    def remove(self, client: str) -> None:
        placed = self.placed.pop(client)
        self.tenants.remove(client)
        if self.guarantees:
            self.guarantees.leave(client, placed.devices)
        self._finder.remove(client, placed.request, placed.devices)
        if self.guarantees and self.guarantees.bad:
            self._heal(lambda guarantees: guarantees.heal())

    def _put(self, client: str, placed: Placed) -> None:
        self.placed[client] = placed
        self.tenants.put(client, placed.tenant, placed.request.share, placed.width)
        if self.guarantees:
            self.guarantees.enter(client, placed.tenant, placed.devices)
        self._finder.put(client, placed.request, placed.devices)

    # --- reading

    @property
    def guests_to_go(self) -> set[str]:
        """Clients on devices that a tenant has claimed by its guarantee: they must give way at once."""
        return self.guarantees.guests_to_go() if self.guarantees else set()

    def bytes_of(self, placed: Placed) -> int | None:
        """What it may allocate on its devices together; None: no bound of its own."""
        return placed.request.bytes_in_all(tuple(self.books[uuid].memory for uuid in placed.devices))

    def on(self, uuid: str) -> tuple[str, ...]:
        return tuple(self.books[uuid].clients)

    def owner(self, uuid: str) -> str:
        """The tenant that is guaranteed the device at present; empty: nobody."""
        return self._finder.owner(uuid)

    # --- guarantees

    def _guarantee(self, settings: PlacementSettings) -> tuple[Tree | None, Guarantees | None]:
        """For the present devices and clients. Raises Refused, having changed nothing."""
        cells = Tenants(settings.tenants).guarantees()
        if settings.topology is not None:
            tree = Tree(settings.topology)
        elif cells and self.offered:
            tree = Tree.flat(self.offered)
        else:
            return None, None
        if not cells:
            return tree, None
        made = Guarantees(tree, cells)
        made.bad = {uuid for uuid in tree.leaves if uuid not in self.books or self.books[uuid].failed}
        for client, placed in self.placed.items():
            made.enter(client, placed.tenant, placed.devices)
        made.heal()
        return tree, made

    def _locate(self, book: Book) -> None:
        leaf = self._tree.leaves.get(book.uuid) if self._tree else None
        book.cells = (leaf.above(1).path, leaf.above(2).path, leaf.above(3).path) if leaf else ("", "", "")

    def _heal(self, what: Callable[[Guarantees], set[str]]) -> None:
        if self.guarantees:
            what(self.guarantees)
            self._finder.settle()

    def _strategy(self, settings: PlacementSettings) -> Callable[[], Strategy]:
        return lambda: STRATEGIES[settings.strategy](self._typical)
