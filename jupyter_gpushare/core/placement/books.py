"""What is placed on each device, and whether one more client can be."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from ...units import format_size
from .request import Request

WHOLE = 1000  # thousandths of a device: the grain in which sizes are compared
EPSILON = 1e-9


@dataclass(eq=False)
class Book:
    """One device. `cells` names the switch, socket and node that it is in; `order` is its index."""

    uuid: str
    name: str
    memory: int
    order: int
    cells: tuple[str, ...] = ("", "", "")
    failed: str = ""  # why it must not be used
    clients: dict[str, Request] = field(default_factory=dict)
    share: float = 0.0  # guaranteed to clients, in all
    promised: int = 0  # bytes that clients asked for
    taken: float = 0.0  # the sum of their sizes, which may exceed 1
    anti_affinities: Counter[str] = field(default_factory=Counter)
    exclusions: Counter[str] = field(default_factory=Counter)  # "" for clients without one

    @property
    def node(self) -> str:
        return self.cells[-1]

    @property
    def free(self) -> int:
        """Thousandths of it that nobody asked for."""
        return max(0, WHOLE - round(self.taken * WHOLE))

    def describe(self, name: str, memory: int) -> None:
        """More has become known of the device."""
        self.name = name
        if memory != self.memory:
            clients = dict(self.clients)
            for client in clients:
                self.remove(client)
            self.memory = memory
            for client, request in clients.items():
                self.put(client, request)

    def put(self, client: str, request: Request) -> None:
        self.clients[client] = request
        self._count(request, 1)

    def remove(self, client: str) -> None:
        self._count(self.clients.pop(client), -1)

    def _count(self, request: Request, sign: int) -> None:
        self.share += sign * request.share
        self.promised += sign * request.bytes_on(self.memory)
        self.taken += sign * request.size_on(self.memory)
        self.anti_affinities[request.anti_affinity] += sign
        self.exclusions[request.exclusion] += sign
        if not self.clients:  # no rounding errors are left over
            self.share = self.taken = 0.0

    # --- what stands against a client here; each says so in words, or nothing

    def obstacle(self, request: Request) -> str:
        """What no other choice among its clients could change."""
        if self.failed:
            return f"has failed ({self.failed})"
        if request.anti_affinity and self.anti_affinities[request.anti_affinity]:
            return f"has a client with anti_affinity={request.anti_affinity}"
        if len(self.clients) != self.exclusions[request.exclusion]:
            if request.exclusion:
                return f"has clients without exclusion={request.exclusion}"
            labels = sorted(label for label, count in self.exclusions.items() if count and label)
            return f"is kept for clients with exclusion={labels[0]}"
        return self.lack_of_share(request.share)

    def lack_of_share(self, share: float, instead_of: float = 0.0) -> str:
        left = 1 - self.share + instead_of
        return f"has {max(0.0, left):.3g} of its share left" if share and share > left + EPSILON else ""

    def lack_of_memory(self, request: Request, oversubscription: float | None) -> str:
        """`oversubscription`: how often its memory may be promised; None: as often as anybody likes."""
        needed = request.bytes_on(self.memory)
        bound = None if oversubscription is None else oversubscription * self.memory
        if not request.movable:
            bound = self.memory
        if not needed or not self.memory or bound is None or self.promised + needed <= bound:
            return ""
        left = max(0, int(bound) - self.promised)
        return f"has at most {format_size(left, math.floor)} left of the {format_size(bound)} that may be asked for"

    def has_room(self, request: Request) -> bool:
        """Whether nothing is oversubscribed with it there."""
        return (
            self.promised + request.bytes_on(self.memory) <= self.memory
            and self.taken + request.size_on(self.memory) <= 1 + EPSILON
        ) or not request.size_on(self.memory)
