"""Whether cells for all guarantees can be found at once, and which: a search over the shapes of cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from .cells import LEVELS, Cell

BUDGET = 20_000  # steps of the search; hosts with alike sockets need one


def pack(free: Sequence[Cell], wanted: Sequence[int], bad: Collection[str] = ()) -> list[list[Cell]] | None:
    """Disjoint cells without bad devices within `free` (disjoint cells), `wanted[level]` of each level.

    None if there are none, or the search gave up. Cells of one shape are alike, so that only how many of each shape
    serve a level is tried, first the smallest: where all cells of a level are alike, the first try is the answer.
    """
    return _Search(bad).run(list(free), wanted)


class _Search:
    def __init__(self, bad: Collection[str]) -> None:
        self._bad = bad
        self._shapes: dict[Cell, int] = {}
        self._known: dict[tuple[int, ...], int] = {}
        self._dead: set[tuple[int, ...]] = set()
        self._steps = 0

    def run(self, free: list[Cell], wanted: Sequence[int]) -> list[list[Cell]] | None:
        found: list[list[Cell]] = [[] for _ in LEVELS]
        return found if self._level(len(LEVELS) - 1, free, wanted, found) else None

    def _level(self, level: int, free: list[Cell], wanted: Sequence[int], found: list[list[Cell]]) -> bool:
        if level < 0:
            return True
        key = (level, *sorted(self._shape(cell) for cell in free))
        self._steps += 1
        if key in self._dead or self._steps > BUDGET:
            return False
        here = [cell for cell in free if cell.level == level]
        good = sorted(
            (cell for cell in here if not self._is_bad(cell)),
            key=lambda cell: (len(cell.devices), self._shape(cell), cell.order),
        )
        kinds = Counter(self._shape(cell) for cell in good)
        for take in _multisets(list(kinds.items()), wanted[level]):
            left, chosen = dict(take), []
            for cell in good:
                shape = self._shape(cell)
                if left.get(shape, 0):
                    left[shape] -= 1
                    chosen.append(cell)
            rest = [part for cell in here if cell not in chosen for part in cell.children]
            found[level] = chosen
            if self._level(level - 1, [*(cell for cell in free if cell.level < level), *rest], wanted, found):
                return True
        self._dead.add(key)
        return False

    def _is_bad(self, cell: Cell) -> bool:
        return any(uuid in self._bad for uuid in cell.devices)

    def _shape(self, cell: Cell) -> int:
        """A number that is the same for cells that are alike: of one level, with parts that are alike."""
        if cell not in self._shapes:
            parts = sorted(map(self._shape, cell.children)) or [int(cell.devices[0] in self._bad)]
            self._shapes[cell] = self._known.setdefault((cell.level, *parts), len(self._known))
        return self._shapes[cell]


def _multisets(kinds: list[tuple[int, int]], number: int) -> Iterator[list[tuple[int, int]]]:
    """How many of each kind make up `number`, as many as possible of the first kinds first."""
    if number == 0:
        yield []
        return
    if sum(count for _, count in kinds) < number:
        return
    (kind, count), *rest = kinds
    for first in range(min(count, number), -1, -1):
        for others in _multisets(rest, number - first):
            yield [(kind, first), *others]
