"""Placement of clients on the nodes of a cluster, by reports of the nodes, which may be old.

The coordinator of each node decides whether the node takes a client. A choice is booked until a report of the node has
the client, the node refuses, or a time limit passes, so that later choices count the client. `core.placement` makes the
choice, with the devices of all nodes as topology cells: the cells of a tenant may be whole nodes, and a gang is on one
node. Methods get the time, in seconds on any clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.errors import NoNode, PlacementFailed, Refused
from ..base.quota import Quota
from ..placement import LEVELS, DeviceAllocations, Placement, PlacementRequest, PlacementSettings, Tenant
from ..placement.request import match_devices
from .node_report import NodeReport, ReportedClient, ReportedDevice

_GONE = "the node reports it no more"
_RESTART_SECONDS = 10.0  # for a coordinator that restarts, whose clients count meanwhile
_SET_BACK_SECONDS = 30.0  # for which a node comes after the others, because it has refused a client
_MISSING = "/missing"  # beginning of the names of cells for which no node has come so far


@dataclass(frozen=True)
class Choice:
    """Node of a client, with the UUIDs of the devices that are booked; none on a node whose devices are unknown."""

    node: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class _Booking:
    node: str
    expires_at: float


@dataclass(frozen=True)
class _Wanted:
    """Client that starts at a time. A quota is within the ceilings of its tenant."""

    client: str
    request: PlacementRequest
    tenant: str
    quota: Quota | None
    now: float


@dataclass(eq=False)
class _Node:
    """Node with its cell, and by UUID the device of the placement. The cell is new when a node has other devices."""

    cell: str = ""
    devices: dict[str, str] = field(default_factory=dict)
    reported: dict[str, ReportedDevice] = field(default_factory=dict)
    clients: dict[str, ReportedClient] = field(default_factory=dict)
    asked_at: float = -float("inf")
    coordinator_at: float = -float("inf")  # time of the last report of a coordinator
    failure: str = "the node has not answered yet"

    @property
    def has_coordinator(self) -> bool:
        """Return whether the last report is that of a coordinator."""
        return self.coordinator_at == self.asked_at


class ClusterPlacement:
    """Placement on the nodes. A call that raises has changed no client.

    Such a call may end bookings, and put a node that has refused a client behind the others.
    """

    def __init__(self, settings: PlacementSettings | None = None, booking_seconds: float = 60.0) -> None:
        """Start without nodes. The topology in the settings does not count. Raises Refused."""
        settings = settings or PlacementSettings()
        self.settings = settings
        self.nodes: dict[str, _Node] = {}
        self.bookings: dict[str, _Booking] = {}  # by client, the oldest first
        self._booking_seconds = booking_seconds
        self._nodes_of_cells: dict[str, str] = {}
        self._nodes_of_clients: dict[str, list[str]] = {}  # by client: the nodes that report the client
        self._set_back: dict[str, float] = {}  # by node: until when the node comes after the others
        self._unknown: dict[str, None] = {}  # nodes whose devices are unknown, the first one first
        self._placement = Placement(replace(settings, topology=_missing_cells(settings.tenants)))

    # --- reports of nodes

    def add_node(self, node: str) -> None:
        """Add a node that has not reported anything."""
        self._node(node)

    def _node(self, node: str) -> _Node:
        if node not in self.nodes:
            self.nodes[node] = _Node()
            self._unknown[node] = None
        return self.nodes[node]

    def observe(self, node: str, report: NodeReport, asked_at: float) -> None:
        """Take a report of a node. A report that was asked for before the last one is ignored.

        A client that is booked, and that the report does not have, may come still. A coordinator that is not there may
        restart, so the node keeps its clients and its failed devices for a time.
        """
        state = self._node(node)
        if asked_at < state.asked_at:
            return
        state.asked_at, state.failure = asked_at, ""
        if report.has_coordinator:
            state.coordinator_at = asked_at
            self._update_devices(node, state, report)
            self._update_clients(node, state, report)
        elif asked_at < state.coordinator_at + _RESTART_SECONDS:
            self._set_failures(state, _reported_failures(state))
        else:
            self._set_failures(state, dict.fromkeys(state.devices, ""))
            self._update_clients(node, state, report)

    def lose(self, node: str, failure: str) -> None:
        """Place no new client on a node that does not answer, whose clients may still run."""
        state = self._node(node)
        state.failure = failure
        self._set_failures(state, dict.fromkeys(state.devices, failure))

    def _update_devices(self, node: str, state: _Node, report: NodeReport) -> None:
        found = {device.uuid: device for device in report.devices}
        if not found.keys() <= state.devices.keys():
            self._replace_cell(node, state, tuple(found))
        for uuid, device in found.items():
            if state.reported.get(uuid) != device:
                name = f"{device.name or uuid} of {node}"
                self._placement.add_device(state.devices[uuid], name, device.memory, parent=device.parent)
        state.reported = found
        self._set_failures(state, _reported_failures(state))

    def _replace_cell(self, node: str, state: _Node, uuids: tuple[str, ...]) -> None:
        """Give a node, whose devices have become known or others, a cell of its own."""
        for client in list(state.clients):
            self._remove_client(node, state, client)
        self._set_failures(state, dict.fromkeys(state.devices, _GONE))
        self._unknown.pop(node, None)
        number = 1
        state.cell = node
        while state.cell in self._nodes_of_cells:
            number += 1
            state.cell = f"{node}#{number}"
        self._nodes_of_cells[state.cell] = node
        state.devices, state.reported = {uuid: f"{state.cell}/{uuid}" for uuid in uuids}, {}
        self._placement.add_node(state.cell, {"socket0": {"switch0": list(state.devices.values())}})

    def _set_failures(self, state: _Node, failures: dict[str, str]) -> None:
        for uuid, failure in failures.items():
            device = self._placement.allocations[state.devices[uuid]]
            if failure and device.failure != failure:
                self._placement.fail(device.uuid, failure)
            elif device.failure and not failure:
                self._placement.recover(device.uuid)

    def _update_clients(self, node: str, state: _Node, report: NodeReport) -> None:
        found = {client.id: client for client in report.clients}
        new = found.keys() - state.clients.keys()
        for client in [one for one, known in state.clients.items() if found.get(one) != known]:
            self._remove_client(node, state, client)
        for client, reported in found.items():
            booking = self.bookings.get(client)
            if booking and (booking.node == node or client in new):  # a server may start the client on another node
                self.release(client)
            if client not in state.clients:
                devices = tuple(state.devices[uuid] for uuid in reported.devices if uuid in state.devices)
                self._placement.register_existing(f"{node}/{client}", reported.request, reported.tenant, devices)
                state.clients[client] = reported
                self._nodes_of_clients.setdefault(client, []).append(node)
        if new:
            self._set_back.pop(node, None)

    def _remove_client(self, node: str, state: _Node, client: str) -> None:
        del state.clients[client]
        nodes = self._nodes_of_clients[client]
        nodes.remove(node)
        if not nodes:
            del self._nodes_of_clients[client]
        self._placement.remove(f"{node}/{client}")

    # --- reading

    @property
    def missing_cells(self) -> Counter[str]:
        """Number of the guaranteed cells of each tenant for which no node has come so far."""
        guarantees = self._placement.guarantees
        slots = guarantees.slots if guarantees else ()
        top = len(LEVELS) - 1
        return Counter(slot.tenant for slot in slots if slot.cell.ancestor(top).name.startswith(_MISSING))

    def owner(self, node: str, uuid: str) -> str:
        """Return the tenant that is guaranteed a device at present; empty: none."""
        return self._placement.owner(self.nodes[node].devices[uuid])

    # --- choices

    def choose(
        self,
        client: str,
        request: PlacementRequest,
        tenant: str = "",
        quota: Quota | None = None,
        *,
        now: float,
        nodes: Container[str] | None = None,
        refused: Container[str] = (),
    ) -> Choice:
        """Choose and book a node for a client that starts, among `nodes` (None: all) that have not `refused` it.

        A quota also gives the share, the memory and the service of the request, within the ceilings of the tenant.
        An earlier booking of the client ends, and the client does not count where it has run before. A node whose
        devices are unknown comes first, because it has no clients; a second start goes there only if no known device is
        suitable. A node that has refused a booked client comes after all others for a time. Raises NoRoom if waiting
        may help, else Refused; CeilingReached and AboveCeiling concern all nodes.
        """
        self.expire(now)
        booking = self.bookings.get(client)
        if booking and booking.node in refused:
            self._set_back[booking.node] = now + _SET_BACK_SECONDS
        self._set_back = {node: until for node, until in self._set_back.items() if until > now}
        self.release(client)

        def is_allowed(node: str) -> bool:
            return node not in refused and (nodes is None or node in nodes)

        def is_preferred(node: str) -> bool:
            return node not in self._set_back and is_allowed(node)

        with self._left_out(client):
            if quota:
                quota = self._placement.tenants.with_ceilings(quota, tenant)
                request = request.with_quota(quota)
                self._placement.tenants.check(_booked(client), tenant, quota, request.gpus)
            wanted = _Wanted(client, request, tenant, quota, now)
            if any(map(is_allowed, self._set_back)):
                with suppress(Refused):
                    return self._choose(wanted, is_preferred)
            return self._choose(wanted, is_allowed)

    @contextmanager
    def _left_out(self, client: str) -> Iterator[None]:
        """Leave a client that restarts out of the placement, on a lost node for example, during the context."""
        names = [f"{node}/{client}" for node in self._nodes_of_clients.get(client, ())]
        before = {name: self._placement.placed[name] for name in names}
        for name in names:
            self._placement.remove(name)
        try:
            yield
        finally:
            for name, placed in before.items():
                self._placement.register_existing(name, placed.request, placed.tenant, placed.devices)

    def _choose(self, wanted: _Wanted, is_allowed: Callable[[str], bool]) -> Choice:
        """Choose and book a node for a client without a booking. Raises Refused."""
        unknown = {node: count for node, count in self._unknown_nodes(wanted.tenant).items() if is_allowed(node)}
        emptiest = min(unknown, key=unknown.__getitem__, default="")
        if not emptiest or unknown[emptiest]:
            try:
                return self._choose_known(wanted, is_allowed)
            except Refused:
                if not emptiest:
                    raise
        self._placement.register_existing(_booked(wanted.client), wanted.request, wanted.tenant)
        self._book(wanted, emptiest)
        return Choice(emptiest, ())

    def _choose_known(self, wanted: _Wanted, is_allowed: Callable[[str], bool]) -> Choice:
        """Choose and book devices that are known. Raises Refused."""
        if not any(state.devices and not state.failure and is_allowed(node) for node, state in self.nodes.items()):
            raise NoNode("no node that may take the client has answered")
        names = self._devices_named(wanted.request.devices)

        def is_candidate(device: DeviceAllocations) -> bool:
            return (names is None or device.uuid in names) and is_allowed(self._nodes_of_cells[device.node])

        request = replace(wanted.request, devices=())
        chosen = self._placement.place(_booked(wanted.client), request, wanted.tenant, wanted.quota, is_candidate)
        node = self._nodes_of_cells[self._placement.allocations[chosen[0]].node]
        self._book(wanted, node)
        return Choice(node, tuple(uuid.removeprefix(f"{self.nodes[node].cell}/") for uuid in chosen))

    def release(self, client: str) -> bool:
        """End the booking of a client, because it does not come or has been reported. Return false if there is none."""
        if not self.bookings.pop(client, None):
            return False
        self._placement.remove(_booked(client))
        return True

    def expire(self, now: float) -> None:
        """End the bookings whose time has passed."""
        while self.bookings and next(iter(self.bookings.values())).expires_at <= now:
            self.release(next(iter(self.bookings)))

    def _book(self, wanted: _Wanted, node: str) -> None:
        self.bookings[wanted.client] = _Booking(node, wanted.now + self._booking_seconds)

    def _unknown_nodes(self, tenant: str) -> dict[str, int]:
        """Return the nodes that answer, whose devices are unknown, with the number of starts that are booked there.

        A coordinator without devices counts as such a start, because its node may have no devices. A tenant that has
        all of its cells stays within these.
        """
        known = self._placement.tenants.get(tenant)
        if not self._unknown or (known and known.has_cells and tenant not in self.missing_cells):
            return {}
        booked = Counter(booking.node for booking in self.bookings.values())
        states = {node: self.nodes[node] for node in self._unknown if not self.nodes[node].failure}
        return {node: booked[node] + len(one.clients) + one.has_coordinator for node, one in states.items()}

    def _devices_named(self, words: tuple[str, ...]) -> frozenset[str] | None:
        """Return the devices that a user names by their UUID, by its beginning, by index on the node or by name."""
        if not words:
            return None
        found: set[str] = set()
        for state in self.nodes.values():
            devices = [(one.uuid, str(index), one.name) for index, one in enumerate(state.reported.values())]
            found |= {state.devices[uuid] for word in words for uuid in match_devices(word, devices)}
        if not found:
            raise PlacementFailed(f"device={'+'.join(words)!r} does not exist on any node")
        return frozenset(found)


def _reported_failures(state: _Node) -> dict[str, str]:
    """Return by UUID why no new client may use a device, or ""."""
    return {uuid: state.reported[uuid].failure if uuid in state.reported else _GONE for uuid in state.devices}


def _booked(client: str) -> str:
    """Return the name of a booked client in the placement, where other clients have the name of their node in front."""
    return f"/{client}"


def _missing_cells(tenants: Iterable[Tenant]) -> dict[str, Any]:
    """Return a topology with a cell for each guarantee, which none can use. A guarantee moves to the cell of a node."""
    counts = {tenant.name: sum(tenant.cells.values()) for tenant in tenants}
    names = [f"{_MISSING}/{tenant}/{number}" for tenant, count in counts.items() for number in range(count)]
    return {name: {"socket0": {"switch0": [name]}} for name in names}
