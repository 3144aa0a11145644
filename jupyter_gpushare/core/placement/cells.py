"""Topology cells, and buddy allocation of them.

A topology cell is a device, a PCIe switch, a socket or a node with all that is below it (HiveD: Zhao et al., "HiveD:
Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI'20). Free cells are kept as large as they can be: to take
one, the smallest larger one is split; when all parts of a cell are free again, they are merged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import Refused

LEVELS = ("device", "switch", "socket", "node")  # the smallest first


@dataclass(eq=False)
class Cell:
    """One cell; `level` is an index into LEVELS, `order` its place among the cells of that level."""

    level: int
    name: str
    order: int
    parent: Cell | None = None
    children: list[Cell] = field(default_factory=list)
    devices: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """`node0/socket1`, for people."""
        return f"{self.parent.path}/{self.name}" if self.parent else self.name

    def at(self, level: int) -> Iterator[Cell]:
        """The cells of `level` in it, itself included."""
        if self.level == level:
            yield self
        elif self.level > level:
            for child in self.children:
                yield from child.at(level)

    def above(self, level: int) -> Cell:
        """The cell of `level`, not below its own, that it is in."""
        cell = self
        while cell.level < level and cell.parent:
            cell = cell.parent
        return cell

    def overlaps(self, other: Cell) -> bool:
        low, high = (self, other) if self.level < other.level else (other, self)
        return low.above(high.level) is high


class Tree:
    """The cells of a topology: `{node: {socket: {switch: [device UUID, …]}}}`."""

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        """Raises Refused, naming the place that is not of that form."""
        self.levels: tuple[list[Cell], ...] = tuple([] for _ in LEVELS)
        self.leaves: dict[str, Cell] = {}
        for name, parts in nodes.items():
            self._grow(len(LEVELS) - 1, name, parts, None)

    @classmethod
    def flat(cls, devices: Iterable[str]) -> Tree:
        """All devices behind one switch: what is taken to be if nothing is known."""
        uuids = list(devices)
        return cls({"node0": {"socket0": {"switch0": uuids}}} if uuids else {})

    @property
    def roots(self) -> list[Cell]:
        return self.levels[-1]

    def counts(self) -> str:
        """`8 device, 2 switch, 1 socket, 1 node`, for people."""
        return ", ".join(f"{len(cells)} {name}" for cells, name in zip(self.levels, LEVELS, strict=True))

    def _grow(self, level: int, name: str, parts: Any, parent: Cell | None) -> Cell:
        cell = Cell(level, name, len(self.levels[level]), parent)
        where = f"topology: {LEVELS[level]} {cell.path}"
        if level == 1:
            if not isinstance(parts, Sequence) or isinstance(parts, str) or not all(isinstance(p, str) for p in parts):
                raise Refused(f"{where} is no list: allowed is a list of device UUIDs")
            children = [self._leaf(uuid, cell, where) for uuid in parts]
        else:
            if not isinstance(parts, Mapping):
                raise Refused(f"{where} is no object: allowed is an object with a member for each {LEVELS[level - 1]}")
            children = [self._grow(level - 1, key, value, cell) for key, value in parts.items()]
        if not children:
            raise Refused(f"{where} is empty: allowed are one {LEVELS[level - 1]} or more")
        cell.children = children
        cell.devices = tuple(uuid for child in children for uuid in child.devices)
        self.levels[level].append(cell)
        return cell

    def _leaf(self, uuid: str, parent: Cell, where: str) -> Cell:
        if uuid in self.leaves:
            raise Refused(f"{where} has device {uuid}, which is at {self.leaves[uuid].path} already: allowed is once")
        leaf = Cell(0, uuid, len(self.levels[0]), parent, devices=(uuid,))
        self.leaves[uuid] = leaf
        self.levels[0].append(leaf)
        return leaf


class Buddy:
    """The free cells of a tree, as large as they can be."""

    def __init__(self, tree: Tree) -> None:
        self._free: tuple[dict[Cell, None], ...] = tuple({} for _ in LEVELS)
        for root in tree.roots:
            self._free[root.level][root] = None

    @property
    def free(self) -> list[Cell]:
        """Disjoint; no two of them make up a larger one."""
        return [cell for cells in self._free for cell in cells]

    def is_free(self, cell: Cell) -> bool:
        return self._free_around(cell) is not None

    def find(self, level: int, bad: Collection[str] = (), least: int = 1) -> Cell | None:
        """The cell of `level` without a bad device, and with `least` devices, that is got by the least splitting; None
        if there is none.

        Among equals, one in a part that has bad devices already: whole cells stay whole."""
        for free in self._free[level:]:
            for around in sorted(free, key=lambda c: (-_count(c, bad), len(c.devices), c.order)):
                cells = [cell for cell in around.at(level) if not _count(cell, bad) and len(cell.devices) >= least]
                if cells:
                    return min(cells, key=lambda c: (len(c.devices), c.order))
        return None

    def take(self, cell: Cell) -> None:
        """Split what it is in until it is free by itself, and take it out. Raises ValueError if it is not free."""
        around = self._free_around(cell)
        if around is None:
            raise ValueError(f"cell {cell.path} is not free")
        del self._free[around.level][around]
        while around is not cell:
            part = cell.above(around.level - 1)
            for child in around.children:
                if child is not part:
                    self._free[child.level][child] = None
            around = part

    def give(self, cell: Cell) -> None:
        """Put it back and merge it with its buddies. Raises ValueError if any of it is free already."""
        if any(cell.overlaps(other) for other in self.free):
            raise ValueError(f"cell {cell.path} is free already")
        while cell.parent and all(child is cell or child in self._free[child.level] for child in cell.parent.children):
            for child in cell.parent.children:
                self._free[child.level].pop(child, None)
            cell = cell.parent
        self._free[cell.level][cell] = None

    def _free_around(self, cell: Cell) -> Cell | None:
        around: Cell | None = cell
        while around is not None and around not in self._free[around.level]:
            around = around.parent
        return around


def _count(cell: Cell, bad: Collection[str]) -> int:
    return sum(uuid in bad for uuid in cell.devices) if bad else 0
