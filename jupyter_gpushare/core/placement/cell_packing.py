"""Search for disjoint topology cells for all guarantees at once, in which cells of equal shape count as equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from .topology_cells import LEVELS, TopologyCell

MAX_SEARCH_STEPS = 20_000  # of one search; hosts with equal sockets need one step


def pack_cells(free: Sequence[TopologyCell], counts: Sequence[int]) -> list[list[TopologyCell]] | None:
    """Return disjoint cells without failed devices within `free` (disjoint cells), `counts[level]` of each level.

    None: there are no such cells, or the search has given up. Cells of one shape are alike, so the search only tries
    how many cells of each shape serve a level, the smallest shape first. If all cells of a level are alike, the first
    try is the answer.
    """
    return _CellSearch().run(list(free), counts)


class _CellSearch:
    def __init__(self) -> None:
        self._shapes: dict[TopologyCell, int] = {}
        self._known: dict[tuple[int, ...], int] = {}
        self._unsolvable: set[tuple[int, ...]] = set()
        self._steps = 0

    def run(self, free: list[TopologyCell], counts: Sequence[int]) -> list[list[TopologyCell]] | None:
        found: list[list[TopologyCell]] = [[] for _ in LEVELS]
        return found if self._search_level(len(LEVELS) - 1, free, counts, found) else None

    def _search_level(
        self, level: int, free: list[TopologyCell], counts: Sequence[int], found: list[list[TopologyCell]]
    ) -> bool:
        if level < 0:
            return True
        key = (level, *sorted(self._shape(cell) for cell in free))
        self._steps += 1
        if key in self._unsolvable or self._steps > MAX_SEARCH_STEPS:
            return False
        cells_of_level = [cell for cell in free if cell.level == level]
        good = sorted(
            (cell for cell in cells_of_level if not cell.failed),
            key=lambda cell: (len(cell.devices), self._shape(cell), cell.order),
        )
        kinds = Counter(self._shape(cell) for cell in good)
        for take in _multisets(list(kinds.items()), counts[level]):
            left, chosen = dict(take), []
            for cell in good:
                shape = self._shape(cell)
                if left.get(shape, 0):
                    left[shape] -= 1
                    chosen.append(cell)
            rest = [part for cell in cells_of_level if cell not in chosen for part in cell.children]
            found[level] = chosen
            if self._search_level(level - 1, [*(cell for cell in free if cell.level < level), *rest], counts, found):
                return True
        self._unsolvable.add(key)
        return False

    def _shape(self, cell: TopologyCell) -> int:
        """Return a number that is the same for cells that are alike: of one level, with children that are alike."""
        if cell not in self._shapes:
            parts = sorted(map(self._shape, cell.children)) or [cell.failed]
            self._shapes[cell] = self._known.setdefault((cell.level, *parts), len(self._known))
        return self._shapes[cell]


def _multisets(kinds: list[tuple[int, int]], number: int) -> Iterator[list[tuple[int, int]]]:
    """Yield how many of each kind make up `number`, as many as possible of the first kinds first."""
    if number == 0:
        yield []
        return
    if sum(count for _, count in kinds) < number:
        return
    (kind, count), *rest = kinds
    for first in range(min(count, number), -1, -1):
        for others in _multisets(rest, number - first):
            yield [(kind, first), *others]
