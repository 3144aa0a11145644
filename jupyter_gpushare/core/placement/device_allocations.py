"""Allocations of a device: its placed clients, their totals, and the reasons against a further client."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from ...units import format_size
from .request import PlacementRequest

FULL_DEVICE = 1000  # thousandths of a device, the unit in which sizes are compared
EPSILON = 1e-9  # tolerance for rounding errors in sums of shares


@dataclass(eq=False)
class DeviceAllocations:
    """Allocations of one device. `cell_paths` names its switch, socket and node; `order` is its index."""

    uuid: str
    name: str
    memory: int
    order: int
    parent: str = ""  # UUID of the GPU of a MIG slice; empty: a whole GPU
    cell_paths: tuple[str, ...] = ("", "", "")
    failure: str = ""  # the reason why no client may use it; empty: it works
    load: int = 0  # recent work of its clients, while a client is placed for its first CUDA call
    clients: dict[str, PlacementRequest] = field(default_factory=dict)
    guaranteed_share: float = 0.0  # sum of the clients' guaranteed shares
    allocated_memory: int = 0  # bytes that clients asked for
    allocated_share: float = 0.0  # sum of the clients' sizes, which may exceed 1
    anti_affinities: Counter[str] = field(default_factory=Counter)
    exclusions: Counter[str] = field(default_factory=Counter)  # "": clients without an exclusion

    @property
    def node(self) -> str:
        return self.cell_paths[-1]

    @property
    def free_thousandths(self) -> int:
        """Thousandths of the device that no client has asked for."""
        return max(0, FULL_DEVICE - round(self.allocated_share * FULL_DEVICE))

    def update_info(self, name: str, memory: int) -> None:
        """Update the name and the memory, because more has become known of the device."""
        self.name = name
        if memory != self.memory:
            clients = dict(self.clients)
            for client in clients:
                self.remove(client)
            self.memory = memory
            for client, request in clients.items():
                self.add(client, request)

    def add(self, client: str, request: PlacementRequest) -> None:
        self.clients[client] = request
        self._add_to_totals(request, 1)

    def remove(self, client: str) -> None:
        self._add_to_totals(self.clients.pop(client), -1)

    def _add_to_totals(self, request: PlacementRequest, sign: int) -> None:
        self.guaranteed_share += sign * request.share
        self.allocated_memory += sign * request.bytes_on(self.memory)
        self.allocated_share += sign * request.size_on(self.memory)
        self.anti_affinities[request.anti_affinity] += sign
        self.exclusions[request.exclusion] += sign
        if not self.clients:  # removes rounding errors
            self.guaranteed_share = self.allocated_share = 0.0

    # --- reasons against a client here, each as a text that is empty if there is none

    def rejection_reason(self, request: PlacementRequest) -> str:
        """Return the reason against the request here, apart from lack of memory."""
        if self.failure:
            return f"has failed ({self.failure})"
        if not self.suits_count(request):
            return "is a MIG slice, of which a client can use only one"
        if request.anti_affinity and self.anti_affinities[request.anti_affinity]:
            return f"has a client with anti_affinity={request.anti_affinity}"
        if len(self.clients) != self.exclusions[request.exclusion]:
            if request.exclusion:
                return f"has clients without exclusion={request.exclusion}"
            labels = sorted(label for label, count in self.exclusions.items() if count and label)
            return f"is kept for clients with exclusion={labels[0]}"
        return self.missing_share(request.share)

    def suits_count(self, request: PlacementRequest) -> bool:
        """Return whether the device can be one of so many: a process sees one MIG slice and then no other device."""
        return request.gpus == 1 or not self.parent

    def missing_share(self, share: float, replaced_share: float = 0.0) -> str:
        left = 1 - self.guaranteed_share + replaced_share
        return f"has {max(0.0, left):.3g} of its share left" if share and share > left + EPSILON else ""

    def missing_memory(self, request: PlacementRequest, oversubscription: float | None) -> str:
        """Return the lack of memory as a text. `oversubscription`: how often memory may be promised; None: no bound."""
        needed = request.bytes_on(self.memory)
        bound = None if oversubscription is None else oversubscription * self.memory
        if not request.movable:
            bound = self.memory
        if not needed or not self.memory or bound is None or self.allocated_memory + needed <= bound:
            return ""
        left = max(0, int(bound) - self.allocated_memory)
        return f"has at most {format_size(left, math.floor)} left of the {format_size(bound)} that may be asked for"

    def admits_when_empty(self, request: PlacementRequest, oversubscription: float | None) -> bool:
        """Return whether the device would take the request without its present clients."""
        empty = replace(
            self,
            clients={},
            guaranteed_share=0.0,
            allocated_memory=0,
            allocated_share=0.0,
            anti_affinities=Counter(),
            exclusions=Counter(),
        )
        return not (empty.rejection_reason(request) or empty.missing_memory(request, oversubscription))

    def has_room(self, request: PlacementRequest) -> bool:
        """Return whether the request oversubscribes nothing on the device."""
        return (
            self.allocated_memory + request.bytes_on(self.memory) <= self.memory
            and self.allocated_share + request.size_on(self.memory) <= 1 + EPSILON
        ) or not request.size_on(self.memory)
