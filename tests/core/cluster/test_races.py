"""Races of many servers: choices by old reports, while nodes admit, refuse, end and lose clients, in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from random import Random

import pytest

from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.cluster.cluster_placement import Choice, ClusterPlacement
from jupyter_gpushare.core.cluster.node_report import NO_COORDINATOR, NodeReport, ReportedClient, ReportedDevice
from jupyter_gpushare.core.placement import Placement, PlacementRequest, PlacementSettings, Tenant

from ...support import tier
from .clusters import MEMORY

DEVICES = 2
BOOKING_SECONDS = 60.0
TENANTS = (
    Tenant("team", cells={"node": 1}),
    Tenant("lab", cells={"device": 1}, share=3.0),
    Tenant("class", max_clients=3),
)
NODES = ("a", "b", "c", "d", "e")
RACES = 3_000  # choices of one test
SEEDS = range(tier.strength(1, 12))  # together 100,000 choices in the nightly tier


class Races:
    """Nodes with placements of their own, and servers that choose nodes by reports that arrive late."""

    def __init__(self, strategy: str, seed: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.nodes: dict[str, Placement] = {}
        self.tenants: dict[str, str] = {}  # by client
        self.cluster = ClusterPlacement(PlacementSettings(strategy, tenants=TENANTS), BOOKING_SECONDS)
        for node in NODES:
            self.nodes[node] = Placement()
            for number in range(DEVICES):
                self.nodes[node].add_device(f"d{number}", "", MEMORY)
        self.lost: set[str] = set()
        self.last: dict[str, tuple[float, NodeReport]] = {}  # as the cluster knows the nodes
        self.booked: dict[str, tuple[float, PlacementRequest, Choice]] = {}
        self.choices = self.starts = self.node_refusals = self.refusals = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def run(self) -> None:
        """Run all events."""
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()

    # --- nodes

    def send_report(self, node: str, repeat: bool = True) -> None:
        """Send the present state of a node, which arrives later, and maybe after the next report."""
        asked_at, placement = self.now, self.nodes[node]
        clients = (
            ReportedClient(client, placed.devices, placed.request, self.tenants[client])
            for client, placed in placement.placed.items()
        )
        devices = tuple(ReportedDevice(one.uuid, "", MEMORY, one.failure) for one in placement.allocations.values())
        made = NodeReport(devices, tuple(clients))
        self.later(self.rng.expovariate(0.5), lambda: self.receive(node, made, asked_at))
        if repeat and self.choices < RACES:
            self.later(self.rng.uniform(0.5, 4.0), lambda: self.send_report(node))

    def receive(self, node: str, made: NodeReport, asked_at: float) -> None:
        if self.rng.random() < 0.02:
            self.cluster.lose(node, "no answer")
            self.lost.add(node)
            return
        if self.rng.random() < 0.02 and asked_at >= self.last.get(node, (-1.0, made))[0]:  # the coordinator restarts
            self.cluster.observe(node, NO_COORDINATOR, asked_at)
            if node in self.last:
                self.last[node] = asked_at, self.last[node][1]
                self.lost.discard(node)
            return
        self.cluster.observe(node, made, asked_at)
        if asked_at >= self.last.get(node, (-1.0, made))[0]:
            self.last[node] = asked_at, made
            self.lost.discard(node)
            for client in {one.id for one in made.clients} & self.booked.keys():
                if self.booked[client][2].node == node:
                    del self.booked[client]

    def end(self, node: str, client: str) -> None:
        self.nodes[node].remove(client)

    # --- servers

    def begin(self, number: int) -> None:
        """Begin a start, and the next one soon, so that many starts are under way at the same time."""
        if self.choices < RACES:
            self.later(self.rng.expovariate(4.0), lambda: self.begin(number + 1))
        client = f"c{number}"
        self.tenants[client] = self.rng.choice(("", "", "team", "lab", "class"))
        request = PlacementRequest(
            gpus=self.rng.choice((1, 1, 1, DEVICES)),
            share=self.rng.choice((0.0, 0.25, 0.5, 1.0)),
            memory=self.rng.randrange(1, MEMORY // 2),
            exclusion=self.rng.choice(("", "alone")) if self.tenants[client] == "team" else "",
            anti_affinity=self.rng.choice(("", "", "apart")),
        )
        if self.rng.random() < 0.1:  # of a server that goes without the cluster's placement
            self.later(1.0, lambda: self.admit(client, request, self.rng.choice(NODES)))
        else:
            self.choose(client, request, frozenset())

    def choose(self, client: str, request: PlacementRequest, refused: frozenset[str]) -> None:
        tenant = self.tenants[client]
        self.choices += 1
        self.booked.pop(client, None)
        self.booked = {one: made for one, made in self.booked.items() if made[0] + BOOKING_SECONDS > self.now}
        try:
            choice = self.cluster.choose(
                client,
                request,
                tenant,
                Quota(share=request.share, memory=request.memory),
                now=self.now,
                refused=refused,
            )
        except Refused:
            self.refusals += 1
            self.check_refusal(tenant, request, refused)
            return
        self.check_choice(choice, request, tenant, refused)
        self.booked[client] = self.now, request, choice
        if self.rng.random() > 0.05:  # else the server is killed
            self.later(self.rng.expovariate(0.3), lambda: self.try_node(client, request, choice, refused))

    def try_node(self, client: str, request: PlacementRequest, choice: Choice, refused: frozenset[str]) -> None:
        if not self.admit(client, request, choice.node):
            self.choose(client, request, refused | {choice.node})

    def admit(self, client: str, request: PlacementRequest, node: str) -> bool:
        """Let the node decide, which knows all of its clients, and return whether the client runs."""
        try:
            self.nodes[node].place(client, request)
        except Refused:
            self.node_refusals += 1
            return False
        self.starts += 1
        self.later(self.rng.expovariate(0.15), lambda: self.end(node, client))
        return True

    # --- checks

    def check_choice(self, choice: Choice, request: PlacementRequest, tenant: str, refused: frozenset[str]) -> None:
        """Check that the choice keeps what is promised to other clients, as far as the reports show that."""
        assert choice.node not in refused | self.lost
        assert len(choice.devices) == request.gpus
        for uuid in choice.devices:
            known = [(one.request, self.tenants[one.id]) for one in self.on(choice.node, uuid)]
            known += [
                (other, self.tenants[client])
                for client, (_, other, booked) in self.booked.items()
                if booked.node == choice.node and uuid in booked.devices
            ]
            if request.share:
                assert sum(other.share for other, _ in known) + request.share <= 1.0 + 1e-9
            assert all(other.exclusion == request.exclusion for other, _ in known)
            assert not request.anti_affinity or all(other.anti_affinity != "apart" for other, _ in known)
            owner = self.cluster.owner(choice.node, uuid)
            assert tenant not in ("team", "lab") or owner == tenant
            assert owner in ("", tenant) or all(other != owner for _, other in known), "the owner uses its cell"

    def check_refusal(self, tenant: str, request: PlacementRequest, refused: frozenset[str]) -> None:
        """Check that a tenant has its cells, whatever the other clients do.

        A client that asks for nothing but one device is refused only by clients of its own tenant, and lost nodes.
        """
        if tenant == "team" and not (refused or self.lost or request.anti_affinity or request.exclusion):
            is_alone = any(made[1].exclusion for client, made in self.booked.items() if self.tenants[client] == "team")
            is_alone |= any(
                one.request.exclusion
                for node in NODES
                for uuid in self.nodes[node].allocations
                for one in self.on(node, uuid)
            )
            assert is_alone or request.gpus > 1 or request.share > 0

    def on(self, node: str, uuid: str) -> list[ReportedClient]:
        """Return the clients of a device in the last report that has arrived."""
        made = self.last.get(node)
        return [one for one in made[1].clients if uuid in one.devices] if made else []


@pytest.mark.parametrize("strategy", ["spread", "pack", "fgd"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_race_breaks_a_guarantee_or_leaves_a_booking(strategy: str, seed: int) -> None:
    races = Races(strategy, seed)
    for node in NODES:
        races.cluster.observe(node, NO_COORDINATOR, asked_at=0.0)
        races.send_report(node)
    races.later(20.0, lambda: races.begin(0))
    races.run()
    assert races.starts > races.choices / 4
    assert races.node_refusals > races.choices / 50, "old reports must lead to refusals"
    assert races.refusals > races.choices / 50

    races.now += BOOKING_SECONDS
    races.cluster.expire(races.now)
    assert not races.cluster.bookings
    for node in NODES:
        assert not races.nodes[node].placed
        races.cluster.observe(node, NO_COORDINATOR, asked_at=races.now)
    for number in range(len(NODES)):  # each device is as free as in the beginning
        tenant = ("team", "lab", "", "", "")[number]
        gpus = 1 if tenant == "lab" else DEVICES
        races.cluster.choose(f"last {number}", PlacementRequest(gpus=gpus, share=1.0), tenant, now=races.now)
