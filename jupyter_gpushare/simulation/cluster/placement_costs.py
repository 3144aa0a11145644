"""Cost of placement by the number of nodes: clients that come and go, and nodes that arrive, are lost and come back.

Times are processor time, so that other work on the machine does not count.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from random import Random
from time import thread_time_ns
from typing import Any

from ...core.base.errors import Refused
from ...core.placement import PlacementRequest, PlacementSettings, Tenant
from ..reports.results import quantile
from .node_selection import ReportingNodes

DEVICES_PER_NODE = 8
CLIENTS_PER_DEVICE = 5
DEVICE_MEMORY = 80 * 10**9
MEMORY_PARTS = (0.1, 0.2, 0.25, 0.5)  # of a device that a client asks for
GANG_SIZES = (4, 8)
NODES_PER_TENANT = 10  # of its own
TENANT_CLIENTS = 0.8  # fraction of the clients, where there are tenants


class PlacementCosts:
    """Measurement on one cluster, whose clients ask for more memory than its devices have."""

    def __init__(self, strategy: str, nodes: int, tenants: int, seed: int = 1) -> None:
        self._rng = Random(seed)
        self._nodes = [f"n{node}" for node in range(nodes)]
        self._tenants = [f"t{number}" for number in range(tenants)]
        guaranteed = tuple(Tenant(name, cells={"node": NODES_PER_TENANT}) for name in self._tenants)
        settings = PlacementSettings(strategy=strategy, tenants=guaranteed)
        self._reporting = ReportingNodes(dict.fromkeys(self._nodes, DEVICES_PER_NODE), DEVICE_MEMORY, settings)
        self._placed: list[tuple[str, str]] = []  # node and client
        self._number = 0

    def measure(self, changes: int, gangs: int) -> dict[str, Any]:
        """Return quantiles by kind of event, in microseconds for clients and in milliseconds for nodes.

        Garbage collections do not count.
        """
        gc.collect()
        gc.disable()
        try:
            return self._measure(changes, gangs)
        finally:
            gc.enable()

    def _measure(self, changes: int, gangs: int) -> dict[str, Any]:
        arrivals = self._rng.sample(self._nodes, len(self._nodes))
        figures: dict[str, Any] = {"node_arrives_ms": _quantiles([self._report(node) for node in arrivals], 1e6)}
        for _ in range(len(self._nodes) * DEVICES_PER_NODE * CLIENTS_PER_DEVICE):
            self._place(1)
        for node in arrivals:
            self._report(node)
        figures |= self._changes("one_device", (1,), changes)
        figures |= self._changes("gang", GANG_SIZES, gangs)
        lost = self._rng.sample(self._nodes, min(20, len(self._nodes)))
        figures["node_is_lost_ms"] = _quantiles(
            [_timed(self._reporting.cluster.lose, node, "lost") for node in lost], 1e6
        )
        figures["node_comes_back_ms"] = _quantiles([self._report(node) for node in lost[1:]], 1e6)
        return figures | self._changes("one_device_beside_lost_node", (1,), changes)

    def _changes(self, name: str, sizes: Sequence[int], count: int) -> dict[str, Any]:
        """Replace so many clients, and return the figures of choices, and of the reports that a client has ended."""
        durations = [self._replace(self._rng.choice(sizes)) for _ in range(count)]
        return {
            f"{name}_us": _quantiles([placed for _, placed in durations], 1e3),
            f"{name}_leaves_us": _quantiles([removed for removed, _ in durations], 1e3),
        }

    def _place(self, gpus: int) -> int:
        """Choose a node for a client on so many devices, and return the nanoseconds. A refusal counts as well."""
        self._number += 1
        client, tenant = f"c{self._number}", ""
        if self._tenants and self._rng.random() < TENANT_CLIENTS:
            tenant = self._rng.choice(self._tenants)
        request = PlacementRequest(gpus=gpus, memory=int(gpus * DEVICE_MEMORY * self._rng.choice(MEMORY_PARTS)))
        began = thread_time_ns()
        try:
            node = self._reporting.choose(client, request, tenant)
        except Refused:
            return thread_time_ns() - began
        took = thread_time_ns() - began
        self._placed.append((node, client))
        return took

    def _replace(self, gpus: int) -> tuple[int, int]:
        """Report the end of any client, place another one, and return the nanoseconds of both."""
        index = self._rng.randrange(len(self._placed))
        self._placed[index], self._placed[-1] = self._placed[-1], self._placed[index]
        node, client = self._placed.pop()
        self._reporting.end(node, client)
        removed = self._report(node)
        placed = self._place(gpus)
        self._report(self._placed[-1][0])
        return removed, placed

    def _report(self, node: str) -> int:
        """Take a report of a node, and return the nanoseconds."""
        return _timed(self._reporting.report, node)


def _timed(call: Callable[..., Any], *args: Any) -> int:
    began = thread_time_ns()
    call(*args)
    return thread_time_ns() - began


def _quantiles(nanoseconds: Sequence[int], unit: float) -> dict[str, float]:
    ordered = sorted(value / unit for value in nanoseconds)
    return {
        "p50": round(quantile(ordered, 0.5) or 0.0, 3),
        "p99": round(quantile(ordered, 0.99) or 0.0, 3),
        "max": round(ordered[-1], 3),
    }


def measure(nodes: int = 1000, tenants: int = 40, changes: int = 5000, gangs: int = 100) -> dict[str, Any]:
    """Return the figures of each strategy without tenants, and of the default strategy with tenants."""
    variants = {"spread": ("spread", 0), "pack": ("pack", 0), "fgd": ("fgd", 0), "tenants": ("spread", tenants)}
    devices = nodes * DEVICES_PER_NODE
    figures: dict[str, Any] = {"nodes": nodes, "devices": devices, "clients": devices * CLIENTS_PER_DEVICE}
    for name, (strategy, number) in variants.items():
        figures[name] = PlacementCosts(strategy, nodes, number).measure(changes, gangs)
    return figures
