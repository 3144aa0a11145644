"""Fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC'23).

A node's fragmentation for a typical request is the part of its free device fractions that this request could not use:
all of them if the node has no place for it, else those of the devices that are too full. Weighted by how often each
request comes, that is the expected fragmentation; a client goes where it grows least. What is typical is learnt from
recent requests.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sortedcontainers import SortedList

from .books import WHOLE, Book
from .choose import Fits, Pack, Spread, pick

Demand = tuple[int, int]  # thousandths of each device, devices

_GRAIN = 10  # thousandths to which demands are rounded up
_KINDS = 16  # of typical requests that are told apart
_AT_FIRST: Counter[Demand] = Counter({(250, 1): 8, (500, 1): 8, (WHOLE, 1): 16, (WHOLE, 4): 1, (WHOLE, 8): 1})
_ENOUGH = 200  # requests, from which on what was taken to be typical at first counts no more
_MOST_DEMANDS = 64  # for which orders are kept


class Typical:
    """How often which demand comes, over the last `window` requests."""

    def __init__(self, window: int = 1000) -> None:
        self._recent: deque[Demand] = deque(maxlen=window)
        self._counts: Counter[Demand] = Counter()
        self._news = 0
        self.weights: dict[Demand, float] = _weights(_AT_FIRST)
        self.version = 0

    def note(self, size: int, gpus: int) -> None:
        """A request has come. The weights change only now and then, and only if it makes a difference."""
        if size <= 0:
            return
        if len(self._recent) == self._recent.maxlen:
            self._counts[self._recent[0]] -= 1
        demand = (min(WHOLE, -(-size // _GRAIN) * _GRAIN), gpus)
        self._recent.append(demand)
        self._counts[demand] += 1
        self._news += 1
        if self._news * 4 >= len(self._recent):
            self._news = 0
            weights = _weights(self._counts if len(self._recent) > _ENOUGH else self._counts + _AT_FIRST)
            keys = {*weights, *self.weights}
            if sum(abs(weights.get(key, 0.0) - self.weights.get(key, 0.0)) for key in keys) > 0.2:
                self.weights = weights
                self.version += 1


def _weights(counts: Counter[Demand]) -> dict[Demand, float]:
    common = [(demand, count) for demand, count in counts.most_common(_KINDS) if count > 0]
    total = sum(count for _, count in common)
    return {demand: count / total for demand, count in common}


def fragmentation(free: Sequence[int], weights: Iterable[tuple[Demand, float]]) -> float:
    """Expected unusable thousandths on one node whose devices have `free` thousandths left."""
    total = 0.0
    residual = sum(free)
    for (size, gpus), weight in weights:
        unusable = residual if sum(f >= size for f in free) < gpus else sum(f for f in free if f < size)
        total += weight * unusable
    return total


@dataclass(eq=False)
class _Node:
    order: int
    by_free: dict[int, dict[str, Book]] = field(default_factory=dict)

    @property
    def state(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((free, len(books)) for free, books in self.by_free.items()))


Entry = tuple[float, int, int, int, tuple[int, ...]]  # growth, room taken from, free in all, node, free of each device


class GradientDescent:
    """Nodes kept in the order of growth, per demand; brought up to date where something changed since."""

    def __init__(self, typical: Typical) -> None:
        self._typical = typical
        self._version = typical.version
        self._free: dict[str, int] = {}
        self._nodes: dict[str, _Node] = {}
        self._numbered: list[_Node] = []
        self._orders: dict[Demand, _Order] = {}
        self._growth: dict[tuple[tuple[tuple[int, int], ...], Demand], list[tuple[float, tuple[int, ...]]]] = {}
        self._spread = Spread()
        self._pack = Pack()

    def update(self, book: Book) -> None:
        self._spread.update(book)
        self._pack.update(book)
        before = self._free.get(book.uuid)
        if before == book.free:
            return
        if before is not None:
            self._drop(book, before)
        node = self._nodes.get(book.node)
        if node is None:
            node = self._nodes[book.node] = _Node(len(self._nodes))
            self._numbered.append(node)
        node.by_free.setdefault(book.free, {})[book.uuid] = book
        self._free[book.uuid] = book.free
        self._changed(node)

    def remove(self, book: Book) -> None:
        self._spread.remove(book)
        self._pack.remove(book)
        if book.uuid in self._free:
            self._drop(book, self._free.pop(book.uuid))

    def choose(self, size: int, gpus: int, fits: Fits, room: bool) -> tuple[Book, ...] | None:
        """What takes nothing leaves nothing unusable: such clients are spread."""
        if not size:
            return self._spread.choose(size, gpus, fits, room)
        for *_, number, frees in self._order((min(WHOLE, size), gpus)):
            by_free = self._numbered[number].by_free
            books = [book for free in sorted(set(frees)) for book in sorted(by_free[free].values(), key=_place)]
            found = pick(books, gpus, fits, tight=True)
            if found:
                return found
        return self._pack.choose(size, gpus, fits, room)  # labels or memory stand against the best of every node

    def among(self, books: Iterable[Book], size: int) -> list[Book]:
        if not size:
            return self._spread.among(books, size)

        def growth(book: Book) -> float:
            node = self._nodes.get(book.node)
            if node is None or book.free < size:
                return float("inf")
            return self._grown(node, (book.free,), size)

        return sorted(self._pack.among(books, size), key=growth)

    # --- orders

    def _drop(self, book: Book, free: int) -> None:
        node = self._nodes[book.node]
        del node.by_free[free][book.uuid]
        if not node.by_free[free]:
            del node.by_free[free]
        self._changed(node)

    def _changed(self, node: _Node) -> None:
        for order in self._orders.values():
            order.stale.add(node.order)

    def _order(self, demand: Demand) -> Iterable[Entry]:
        if self._version != self._typical.version or len(self._orders) > _MOST_DEMANDS:
            self._version = self._typical.version
            self._orders.clear()
            self._growth.clear()
        order = self._orders.get(demand)
        if order is None:
            order = self._orders[demand] = _Order(set(range(len(self._numbered))))
        for number in order.stale:
            order.replace(number, self._entries(self._numbered[number], demand))
        order.stale.clear()
        entries: Iterable[Entry] = order.entries
        return entries

    def _entries(self, node: _Node, demand: Demand) -> list[Entry]:
        state = node.state
        grown = self._growth.get((state, demand))
        if grown is None:
            grown = [(self._grown(node, frees, demand[0]), frees) for frees in _choices(state, demand)]
            if len(state) <= 16:
                self._growth[state, demand] = grown
        residual = sum(free * count for free, count in state)
        return [(growth, sum(frees), residual, node.order, frees) for growth, frees in grown]

    def _grown(self, node: _Node, frees: tuple[int, ...], size: int) -> float:
        """By how much the node's fragmentation grows if `size` is taken of devices with these free fractions."""
        counts = [(free, len(books)) for free, books in node.by_free.items()]
        residual = sum(free * count for free, count in counts)
        total = 0.0
        for (typical, gpus), weight in self._typical.weights.items():
            fit = sum(count for free, count in counts if free >= typical)
            unusable = sum(free * count for free, count in counts if free < typical)
            fit_then, unusable_then = fit, unusable
            for free in frees:
                if free < typical:
                    unusable_then -= size
                elif free - size < typical:
                    fit_then -= 1
                    unusable_then += free - size
            before = residual if fit < gpus else unusable
            after = residual - size * len(frees) if fit_then < gpus else unusable_then
            total += weight * (after - before)
        return round(total, 6)


class _Order:
    """The entries of all nodes for one demand; `stale` nodes have changed since theirs were made."""

    def __init__(self, stale: set[int]) -> None:
        self.stale = stale
        self.entries: SortedList[Entry] = SortedList()
        self._of: dict[int, list[Entry]] = {}

    def replace(self, number: int, entries: list[Entry]) -> None:
        for entry in self._of.get(number, ()):
            self.entries.remove(entry)
        self._of[number] = entries
        self.entries.update(entries)


def _place(book: Book) -> int:
    return book.order


def _choices(state: tuple[tuple[int, int], ...], demand: Demand) -> list[tuple[int, ...]]:
    """Of which devices it can be taken: any that is free enough; for a gang, the fullest of these."""
    size, gpus = demand
    if gpus == 1:
        return [(free,) for free, _ in state if free >= size]
    enough = [free for free, count in state if free >= size for _ in range(min(count, gpus))]
    return [tuple(enough[:gpus])] if len(enough) >= gpus else []
