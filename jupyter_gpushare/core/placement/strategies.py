"""Which devices, of those that a client may have: the strategies.

A strategy keeps the devices of one pool in its order, so that the first one that nothing stands against is the answer:
logarithmic in the number of devices, unless many of them must be passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from sortedcontainers import SortedList

from .device_allocations import FULL_DEVICE, DeviceAllocations

FitTest = Callable[[DeviceAllocations], bool]


class PlacementStrategy(Protocol):
    """The order in which the devices of one pool are considered."""

    def update(self, book: DeviceAllocations) -> None:
        """The device is new in the pool, or what is on it has changed."""

    def remove(self, book: DeviceAllocations) -> None:
        """The device is in the pool no more; no error if it was not."""

    def choose(self, size: int, gpus: int, fits: FitTest, needs_room: bool) -> tuple[DeviceAllocations, ...] | None:
        """`gpus` devices for a client that takes `size` thousandths of each; None if there are none that fit.

        `needs_room`: only those on which so much is free."""

    def sort(self, books: Iterable[DeviceAllocations], size: int) -> list[DeviceAllocations]:
        """The order of these devices, whether in the pool or not."""


class _SortedStrategy:
    """Devices by a key."""

    is_tight = False  # gangs go where they leave the fewest devices

    def __init__(self) -> None:
        self._books: dict[str, DeviceAllocations] = {}
        self._keys: dict[str, tuple[float, ...]] = {}
        self._sorted: SortedList[tuple[tuple[float, ...], str]] = SortedList()

    def key(self, book: DeviceAllocations) -> tuple[float, ...]:
        raise NotImplementedError

    def update(self, book: DeviceAllocations) -> None:
        key = self.key(book)
        before = self._keys.get(book.uuid)
        if before == key:
            return
        if before is not None:
            self._sorted.remove((before, book.uuid))
        self._books[book.uuid] = book
        self._keys[book.uuid] = key
        self._sorted.add((key, book.uuid))

    def remove(self, book: DeviceAllocations) -> None:
        if self._books.pop(book.uuid, None):
            self._sorted.remove((self._keys.pop(book.uuid), book.uuid))

    def choose(self, size: int, gpus: int, fits: FitTest, needs_room: bool) -> tuple[DeviceAllocations, ...] | None:
        return first_fit(self.in_order(size, needs_room), gpus, fits, self.is_tight)

    def in_order(self, size: int, needs_room: bool) -> Iterator[DeviceAllocations]:
        raise NotImplementedError

    def sort(self, books: Iterable[DeviceAllocations], size: int) -> list[DeviceAllocations]:
        return sorted(books, key=self.key)


class SpreadStrategy(_SortedStrategy):
    """The device with the fewest clients, then with the least asked of it: the shortest waits."""

    def key(self, book: DeviceAllocations) -> tuple[float, ...]:
        return (len(book.clients), round(book.allocated_share * FULL_DEVICE), book.order)

    def __init__(self) -> None:
        super().__init__()
        self._by_room = PackStrategy()

    def update(self, book: DeviceAllocations) -> None:
        super().update(book)
        self._by_room.update(book)

    def remove(self, book: DeviceAllocations) -> None:
        super().remove(book)
        self._by_room.remove(book)

    def in_order(self, size: int, needs_room: bool) -> Iterator[DeviceAllocations]:
        """If few have room, these are found by their room; else one of them comes soon."""
        if needs_room and size:
            count = self._by_room.count_with_room(size)
            if count * count <= len(self._books) + 64:
                return iter(self.sort(self._by_room.in_order(size, True), size))
        return (
            book for _, uuid in self._sorted if (book := self._books[uuid]).free_thousandths >= size or not needs_room
        )


class PackStrategy(_SortedStrategy):
    """Best fit: the device with the least room that is enough. Leaves whole devices for who needs them."""

    is_tight = True

    def key(self, book: DeviceAllocations) -> tuple[float, ...]:
        return (book.free_thousandths, -len(book.clients), book.order)

    def count_with_room(self, size: int) -> int:
        """On how many of them so much is free."""
        return len(self._sorted) - int(self._sorted.bisect_left(((size,), "")))

    def in_order(self, size: int, needs_room: bool) -> Iterator[DeviceAllocations]:
        """Those without room for it come last, the roomiest of them first."""
        enough = self._sorted.irange(minimum=((size,), ""))
        short = self._sorted.irange(maximum=((size,), ""), inclusive=(True, False), reverse=True)
        return (self._books[uuid] for _, uuid in (enough if needs_room else chain(enough, short)))

    def sort(self, books: Iterable[DeviceAllocations], size: int) -> list[DeviceAllocations]:
        ordered = sorted(books, key=self.key)
        return [b for b in ordered if b.free_thousandths >= size] + [
            b for b in reversed(ordered) if b.free_thousandths < size
        ]


def first_fit(
    ordered: Iterable[DeviceAllocations], gpus: int, fits: FitTest, is_tight: bool = False
) -> tuple[DeviceAllocations, ...] | None:
    """The first one that fits; a gang in the smallest topology cell that has enough, and never across nodes.

    Of cells alike in that, the one whose devices come first, or, if `is_tight`, that has the fewest to spare.
    """
    if gpus == 1:
        first = next((book for book in ordered if fits(book)), None)
        return None if first is None else (first,)
    candidates = [(rank, book) for rank, book in enumerate(ordered) if fits(book)]
    if len(candidates) < gpus:
        return None
    for level in range(len(candidates[0][1].cell_paths)):
        groups: dict[str, list[tuple[int, DeviceAllocations]]] = {}
        for rank, book in candidates:
            groups.setdefault(book.cell_paths[level], []).append((rank, book))
        enough = [group for group in groups.values() if len(group) >= gpus]
        if enough:
            best = min(enough, key=lambda group: _group_order(group, gpus, is_tight))
            return tuple(book for _, book in best[:gpus])
    return None


def _group_order(group: Sequence[tuple[int, DeviceAllocations]], gpus: int, is_tight: bool) -> tuple[int, int]:
    return len(group) if is_tight else 0, sum(rank for rank, _ in group[:gpus])
