"""Topology cells, and buddy allocation of them.

A topology cell is a device, a PCIe switch, a socket or a node with all devices below it. The cells are those of
HiveD (Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI'20). Free cells are as large
as possible. To allocate a cell, the smallest larger cell is split. When all children of a cell are free again, the
children are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import Refused

LEVELS = ("device", "switch", "socket", "node")  # the smallest first


@dataclass(eq=False)
class TopologyCell:
    """One cell. `level` is an index into LEVELS, and `order` its place among the cells of that level.

    `failed` is the number of its devices that have failed.
    """

    level: int
    name: str
    order: int
    parent: TopologyCell | None = None
    children: list[TopologyCell] = field(default_factory=list)
    devices: tuple[str, ...] = ()
    failed: int = 0

    @property
    def working(self) -> int:
        """Number of its devices that work."""
        return len(self.devices) - self.failed

    @property
    def path(self) -> str:
        """Path for users, such as `node0/socket1`."""
        return f"{self.parent.path}/{self.name}" if self.parent else self.name

    def descendants(self, level: int) -> Iterator[TopologyCell]:
        """Yield the cells of `level` in this cell, itself included."""
        if self.level == level:
            yield self
        elif self.level > level:
            for child in self.children:
                yield from child.descendants(level)

    def ancestor(self, level: int) -> TopologyCell:
        """Return the cell of `level` that this cell is in. The level is not below the cell's own."""
        cell = self
        while cell.level < level and cell.parent:
            cell = cell.parent
        return cell

    def count_working_cells(self, level: int) -> int:
        """Return the number of cells of `level` in this cell without failed devices."""
        if level == 0:
            return self.working
        if self.level <= level:
            return int(self.level == level and not self.failed)
        return sum(child.count_working_cells(level) for child in self.children)

    def overlaps(self, other: TopologyCell) -> bool:
        low, high = (self, other) if self.level < other.level else (other, self)
        return low.ancestor(high.level) is high


class TopologyTree:
    """The cells of a topology: `{node: {socket: {switch: [device UUID, …]}}}`."""

    def __init__(self, nodes: Mapping[str, Any]) -> None:
        """Build the cells. Raises Refused with the place that does not have that form."""
        self.levels: tuple[list[TopologyCell], ...] = tuple([] for _ in LEVELS)
        self.leaves: dict[str, TopologyCell] = {}
        for name, parts in nodes.items():
            self._build(len(LEVELS) - 1, name, parts, None)

    @classmethod
    def flat(cls, devices: Iterable[str]) -> TopologyTree:
        """Return a tree with all devices behind one switch, for hosts whose topology is unknown."""
        uuids = list(devices)
        return cls({"node0": {"socket0": {"switch0": uuids}}} if uuids else {})

    def add_node(self, name: str, parts: Any) -> TopologyCell:
        """Add the cells of another node, and return the cell of the node. Raises Refused, as the constructor does."""
        return self._build(len(LEVELS) - 1, name, parts, None)

    @property
    def roots(self) -> list[TopologyCell]:
        return self.levels[-1]

    @property
    def has_failed_devices(self) -> bool:
        return any(root.failed for root in self.roots)

    def set_failed(self, device: str, is_failed: bool) -> None:
        """Mark the device as failed or as working, in all its cells. A device without a place counts nowhere."""
        cell: TopologyCell | None = self.leaves.get(device)
        if cell is not None and cell.failed != is_failed:
            change = 1 if is_failed else -1
            while cell is not None:
                cell.failed += change
                cell = cell.parent

    def count_by_level(self) -> str:
        """Return a text such as `8 device, 2 switch, 1 socket, 1 node`, for users."""
        return ", ".join(f"{len(cells)} {name}" for cells, name in zip(self.levels, LEVELS, strict=True))

    def _build(self, level: int, name: str, parts: Any, parent: TopologyCell | None) -> TopologyCell:
        cell = TopologyCell(level, name, len(self.levels[level]), parent)
        where = f"topology: {LEVELS[level]} {cell.path}"
        if level == 1:
            if not isinstance(parts, Sequence) or isinstance(parts, str) or not all(isinstance(p, str) for p in parts):
                raise Refused(f"{where} is no list: allowed is a list of device UUIDs")
            children = [self._add_leaf(uuid, cell, where) for uuid in parts]
        else:
            if not isinstance(parts, Mapping):
                raise Refused(
                    f"{where} is not an object: allowed is an object with a member for each {LEVELS[level - 1]}"
                )
            children = [self._build(level - 1, key, value, cell) for key, value in parts.items()]
        if not children:
            raise Refused(f"{where} is empty: allowed are one {LEVELS[level - 1]} or more")
        cell.children = children
        cell.devices = tuple(uuid for child in children for uuid in child.devices)
        self.levels[level].append(cell)
        return cell

    def _add_leaf(self, uuid: str, parent: TopologyCell, where: str) -> TopologyCell:
        if uuid in self.leaves:
            raise Refused(f"{where} has device {uuid}, which is at {self.leaves[uuid].path} already: allowed is once")
        leaf = TopologyCell(0, uuid, len(self.levels[0]), parent, devices=(uuid,))
        self.leaves[uuid] = leaf
        self.levels[0].append(leaf)
        return leaf


class BuddyAllocator:
    """Allocator of the cells of a tree, which keeps free cells as large as possible."""

    def __init__(self, tree: TopologyTree) -> None:
        self._free: tuple[dict[TopologyCell, None], ...] = tuple({} for _ in LEVELS)
        for root in tree.roots:
            self._free[root.level][root] = None

    def add(self, root: TopologyCell) -> None:
        """Add the cells of another node, which are free."""
        self._free[root.level][root] = None

    @property
    def free(self) -> list[TopologyCell]:
        """Disjoint free cells, no two of which make up a larger one."""
        return [cell for cells in self._free for cell in cells]

    def is_free(self, cell: TopologyCell) -> bool:
        return self._free_cell_around(cell) is not None

    def find_free(self, level: int, min_devices: int = 1) -> TopologyCell | None:
        """Return the cell of `level` that needs the least splitting, or None.

        The cell has no failed device, and at least `min_devices` devices. Of equal cells, a cell in a part with failed
        devices is taken, so that whole cells stay whole.
        """
        for free in self._free[level:]:
            suitable = [
                cell for cell in free if cell.working >= min_devices and not (cell.failed and cell.level == level)
            ]
            for around in sorted(suitable, key=lambda cell: (-cell.failed, len(cell.devices), cell.order)):
                cells = [
                    cell for cell in around.descendants(level) if not cell.failed and len(cell.devices) >= min_devices
                ]
                if cells:
                    return min(cells, key=lambda c: (len(c.devices), c.order))
        return None

    def allocate(self, cell: TopologyCell) -> None:
        """Split the cells around the cell until it is free by itself, and take it. Raises ValueError if not free."""
        around = self._free_cell_around(cell)
        if around is None:
            raise ValueError(f"cell {cell.path} is not free")
        del self._free[around.level][around]
        while around is not cell:
            child_with_cell = cell.ancestor(around.level - 1)
            for child in around.children:
                if child is not child_with_cell:
                    self._free[child.level][child] = None
            around = child_with_cell

    def release(self, cell: TopologyCell) -> None:
        """Free the cell and merge it with its buddies. Raises ValueError if any part of it is free already."""
        if self._free_cell_around(cell) or self._has_free_part(cell):
            raise ValueError(f"cell {cell.path} is free already")
        while cell.parent and all(child is cell or child in self._free[child.level] for child in cell.parent.children):
            for child in cell.parent.children:
                self._free[child.level].pop(child, None)
            cell = cell.parent
        self._free[cell.level][cell] = None

    def _free_cell_around(self, cell: TopologyCell) -> TopologyCell | None:
        around: TopologyCell | None = cell
        while around is not None and around not in self._free[around.level]:
            around = around.parent
        return around

    def _has_free_part(self, cell: TopologyCell) -> bool:
        return any(child in self._free[child.level] or self._has_free_part(child) for child in cell.children)
