"""Which devices, of those that a client may have: the strategies.

A strategy keeps the devices of one pool in its order, so that the first one that nothing stands against is the answer:
logarithmic in the number of devices, unless many of them must be passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from sortedcontainers import SortedList

from .books import WHOLE, Book

Fits = Callable[[Book], bool]


class Strategy(Protocol):
    """The order in which the devices of one pool are considered."""

    def update(self, book: Book) -> None:
        """The device is new in the pool, or what is on it has changed."""

    def remove(self, book: Book) -> None:
        """The device is in the pool no more; no error if it was not."""

    def choose(self, size: int, gpus: int, fits: Fits, room: bool) -> tuple[Book, ...] | None:
        """`gpus` devices for a client that takes `size` thousandths of each; None if there are none that fit.

        `room`: only those on which so much is free."""

    def among(self, books: Iterable[Book], size: int) -> list[Book]:
        """The order of these devices, whether in the pool or not."""


class _Sorted:
    """Devices by a key."""

    tight = False  # gangs go where they leave the fewest devices

    def __init__(self) -> None:
        self._books: dict[str, Book] = {}
        self._keys: dict[str, tuple[float, ...]] = {}
        self._sorted: SortedList[tuple[tuple[float, ...], str]] = SortedList()

    def key(self, book: Book) -> tuple[float, ...]:
        raise NotImplementedError

    def update(self, book: Book) -> None:
        key = self.key(book)
        before = self._keys.get(book.uuid)
        if before == key:
            return
        if before is not None:
            self._sorted.remove((before, book.uuid))
        self._books[book.uuid] = book
        self._keys[book.uuid] = key
        self._sorted.add((key, book.uuid))

    def remove(self, book: Book) -> None:
        if self._books.pop(book.uuid, None):
            self._sorted.remove((self._keys.pop(book.uuid), book.uuid))

    def choose(self, size: int, gpus: int, fits: Fits, room: bool) -> tuple[Book, ...] | None:
        return pick(self.ordered(size, room), gpus, fits, self.tight)

    def ordered(self, size: int, room: bool) -> Iterator[Book]:
        raise NotImplementedError

    def among(self, books: Iterable[Book], size: int) -> list[Book]:
        return sorted(books, key=self.key)


class Spread(_Sorted):
    """The device with the fewest clients, then with the least asked of it: the shortest waits."""

    def key(self, book: Book) -> tuple[float, ...]:
        return (len(book.clients), round(book.taken * WHOLE), book.order)

    def __init__(self) -> None:
        super().__init__()
        self._room = Pack()

    def update(self, book: Book) -> None:
        super().update(book)
        self._room.update(book)

    def remove(self, book: Book) -> None:
        super().remove(book)
        self._room.remove(book)

    def ordered(self, size: int, room: bool) -> Iterator[Book]:
        """If few have room, these are found by their room; else one of them comes soon."""
        if room and size:
            count = self._room.roomy(size)
            if count * count <= len(self._books) + 64:
                return iter(self.among(self._room.ordered(size, True), size))
        return (book for _, uuid in self._sorted if (book := self._books[uuid]).free >= size or not room)


class Pack(_Sorted):
    """Best fit: the device with the least room that is enough. Leaves whole devices for who needs them."""

    tight = True

    def key(self, book: Book) -> tuple[float, ...]:
        return (book.free, -len(book.clients), book.order)

    def roomy(self, size: int) -> int:
        """On how many of them so much is free."""
        return len(self._sorted) - int(self._sorted.bisect_left(((size,), "")))

    def ordered(self, size: int, room: bool) -> Iterator[Book]:
        """Those without room for it come last, the roomiest of them first."""
        enough = self._sorted.irange(minimum=((size,), ""))
        short = self._sorted.irange(maximum=((size,), ""), inclusive=(True, False), reverse=True)
        return (self._books[uuid] for _, uuid in (enough if room else chain(enough, short)))

    def among(self, books: Iterable[Book], size: int) -> list[Book]:
        ordered = sorted(books, key=self.key)
        return [b for b in ordered if b.free >= size] + [b for b in reversed(ordered) if b.free < size]


def pick(ordered: Iterable[Book], gpus: int, fits: Fits, tight: bool = False) -> tuple[Book, ...] | None:
    """The first one that fits; a gang in the smallest topology cell that has enough, and never across nodes.

    Of cells alike in that, the one whose devices come first, or, if `tight`, that has the fewest to spare.
    """
    if gpus == 1:
        first = next((book for book in ordered if fits(book)), None)
        return None if first is None else (first,)
    candidates = [(rank, book) for rank, book in enumerate(ordered) if fits(book)]
    if len(candidates) < gpus:
        return None
    for level in range(len(candidates[0][1].cells)):
        groups: dict[str, list[tuple[int, Book]]] = {}
        for rank, book in candidates:
            groups.setdefault(book.cells[level], []).append((rank, book))
        enough = [group for group in groups.values() if len(group) >= gpus]
        if enough:
            best = min(enough, key=lambda group: _order_of(group, gpus, tight))
            return tuple(book for _, book in best[:gpus])
    return None


def _order_of(group: Sequence[tuple[int, Book]], gpus: int, tight: bool) -> tuple[int, int]:
    return len(group) if tight else 0, sum(rank for rank, _ in group[:gpus])
