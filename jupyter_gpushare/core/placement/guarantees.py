"""Guarantees of topology cells (HiveD, OSDI'20): each guaranteed cell always has a place, but not always the same.

A slot is one guaranteed cell of one tenant. Every slot is planned on a cell of its own from the beginning. So each
tenant gets what it was guaranteed, whatever other clients have done. A slot is bound while its tenant has clients
there. Until then its plan may move away from failed devices, and from devices where clients of others would have to
give way. A bound slot of a single device also moves when that device fails. A device without a slot is free for all
clients. A device whose slot is not bound is free for guests, which give way at once when the owner's clients come.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..base.errors import Refused
from .cell_packing import pack_cells
from .topology_cells import LEVELS, BuddyAllocator, TopologyCell, TopologyTree


@dataclass(eq=False)
class Slot:
    """One guaranteed cell. `clients`: the clients of its tenant that are on its devices."""

    tenant: str
    level: int
    cell: TopologyCell
    clients: set[str] = field(default_factory=set)

    @property
    def is_bound(self) -> bool:
        return bool(self.clients)


class Guarantees:
    """Slots of all tenants on one tree of cells."""

    def __init__(self, tree: TopologyTree, cells: Mapping[str, Mapping[str, int]]) -> None:
        """Plan `cells`: by tenant and name of the level, the number of cells. Raises Refused if they have no place."""
        self.tree = tree
        self.slots: list[Slot] = []
        self.owners: dict[str, Slot] = {}  # by device
        self._free = BuddyAllocator(tree)
        self._guests: dict[str, set[str]] = {}  # by device: the clients there that are in no slot of the device
        self._guest_counts: dict[TopologyCell, int] = {}  # known results of `_guest_count`
        self._tenants: dict[str, str] = {}  # by placed client
        counts = _cells_by_level(cells)
        totals = [sum(count for _, count in counts[level]) for level in range(len(LEVELS))]
        found = pack_cells(self._free.free, totals)
        if found is None:
            asked = ", ".join(f"{total} {name}" for total, name in zip(totals, LEVELS, strict=True) if total)
            raise Refused(
                f"tenants: the guarantees need more cells than exist: {asked}; there are {tree.count_by_level()}"
            )
        for level in reversed(range(len(LEVELS))):
            names = [tenant for tenant, count in counts[level] for _ in range(count)]
            for tenant, cell in zip(names, found[level], strict=True):
                self._free.allocate(cell)
                self.slots.append(Slot(tenant, level, cell))
        for slot in self.slots:
            self._assign_devices(slot)

    # --- reading

    def slots_of(self, tenant: str) -> list[Slot]:
        return [slot for slot in self.slots if slot.tenant == tenant]

    def owner(self, device: str) -> str:
        """Return the tenant that is guaranteed the device at present; empty: none."""
        slot = self.owners.get(device)
        return slot.tenant if slot else ""

    def admits(self, device: str, tenant: str) -> bool:
        """Return whether a client of `tenant` (empty: none) may come to the device, even as a guest."""
        slot = self.owners.get(device)
        return slot is None or slot.tenant == tenant or not slot.is_bound

    def tenants_with_idle_cells(self) -> set[str]:
        """Return the tenants with a cell that no client of the tenant uses."""
        return {slot.tenant for slot in self.slots if not slot.is_bound}

    def guests_to_preempt(self) -> set[str]:
        """Return the guests on devices of bound slots. Such a guest may run only while the owner's clients are idle."""
        return {client for uuid, guests in self._guests.items() if self._is_claimed(uuid) for client in guests}

    def _is_claimed(self, uuid: str) -> bool:
        slot = self.owners.get(uuid)
        return slot is not None and slot.is_bound

    def add_node(self, root: TopologyCell) -> None:
        """Add the free cells of another node, whose devices count as failed until `recover`."""
        for uuid in root.devices:
            self.tree.set_failed(uuid, True)
        self._free.add(root)

    # --- clients come and go

    def bind(self, client: str, tenant: str, devices: Iterable[str]) -> None:
        """Add the client to its tenant's slots on these devices, or to the guests there."""
        self._tenants[client] = tenant
        for uuid in devices:
            slot = self.owners.get(uuid)
            if slot and slot.tenant == tenant:
                slot.clients.add(client)
            else:
                self._guests.setdefault(uuid, set()).add(client)
                self._forget_guest_counts(uuid)

    def unbind(self, client: str, devices: Iterable[str]) -> set[str]:
        """Remove the client from its devices. Returns the devices whose owner has changed.

        Slots that are free to move now move away from failed devices.
        """
        self._tenants.pop(client, None)
        has_idle_slot = False
        for uuid in devices:
            slot = self.owners.get(uuid)
            if slot and client in slot.clients:
                slot.clients.discard(client)
                has_idle_slot |= not slot.is_bound
            if guests := self._guests.get(uuid):
                guests.discard(client)
                if not guests:
                    del self._guests[uuid]
                self._forget_guest_counts(uuid)
        return self.repair() if has_idle_slot else set()

    def move_slots_away_from_guests(self, tenant: str) -> set[str]:
        """Move unbound slots of `tenant`, which has a new client, to cells where the fewest guests must give way.

        Returns the devices whose owner has changed.
        """
        changed: set[str] = set()
        for slot in self.slots_of(tenant):
            if not slot.is_bound and (here := self._guest_count(slot.cell)):
                others = [s for s in self.slots if s.level == slot.level and not s.is_bound and s.tenant != tenant]
                free = [cell for cell in self.tree.levels[slot.level] if self._free.is_free(cell)]
                alike = [c for c in (*free, *(s.cell for s in others)) if len(c.devices) == len(slot.cell.devices)]
                better = min(alike, key=self._move_cost, default=None)
                if better and self._move_cost(better) < (slot.cell.failed, here):
                    changed.update(self._move(slot, better, next((s for s in others if s.cell is better), None)))
        return changed

    def _move_cost(self, cell: TopologyCell) -> tuple[int, int]:
        return cell.failed, self._guest_count(cell)

    def _guest_count(self, cell: TopologyCell) -> int:
        count = self._guest_counts.get(cell)
        if count is None:
            count = len({client for uuid in cell.devices for client in self._guests.get(uuid, ())})
            self._guest_counts[cell] = count
        return count

    def _forget_guest_counts(self, device: str) -> None:
        cell: TopologyCell | None = self.tree.leaves.get(device)
        while cell is not None:
            self._guest_counts.pop(cell, None)
            cell = cell.parent

    # --- failed devices

    def fail(self, device: str) -> set[str]:
        """Mark the device as failed. Returns the devices whose owner has changed."""
        self.tree.set_failed(device, True)
        return self.repair()

    def recover(self, device: str) -> set[str]:
        self.tree.set_failed(device, False)
        return self.repair()

    def repair(self) -> set[str]:
        """Move slots away from failed devices where possible. Returns the devices whose owner has changed."""
        changed: set[str] = set()
        if not self.tree.has_failed_devices:
            return changed
        least: dict[int, float] = {}  # by level: the number of devices of which no cell is free
        for slot in self.slots:
            if slot.cell.failed and self._may_move(slot) and slot.cell.working < least.get(slot.level, math.inf):
                better = self._free.find_free(slot.level, slot.cell.working)
                if better:
                    changed.update(self._move(slot, better, None))
                    least.clear()
                else:
                    least[slot.level] = slot.cell.working
        unbound = [slot for slot in self.slots if not slot.is_bound]
        if any(slot.cell.failed for slot in unbound) and self._has_enough_cells(unbound):
            changed.update(self._repack(unbound))
        return changed

    def _has_enough_cells(self, unbound: list[Slot]) -> bool:
        """Return whether there may be cells without failed devices for all unbound slots, by their number."""
        cells = [*self._free.free, *(slot.cell for slot in unbound)]
        return all(
            sum(cell.count_working_cells(level) for cell in cells) >= sum(slot.level >= level for slot in unbound)
            for level in sorted({slot.level for slot in unbound}, reverse=True)
        )

    def _may_move(self, slot: Slot) -> bool:
        """Return whether the slot may move: it is unbound, or it is a single device that has failed.

        Clients of a failed device get a notification, and new clients need a device that works.
        """
        return not slot.is_bound or (slot.level == 0 and bool(slot.cell.failed))

    def _repack(self, unbound: list[Slot]) -> set[str]:
        """Move all unbound slots at once, if each gets a cell without failed devices and as many working devices."""
        counts = [sum(slot.level == level for slot in unbound) for level in range(len(LEVELS))]
        for slot in unbound:
            self._free.release(slot.cell)
        found = pack_cells(self._free.free, counts)
        # The smallest cells go to the slots that have the fewest working devices now.
        order = sorted(unbound, key=lambda slot: slot.cell.working)
        cells = [found[slot.level].pop(0) for slot in order] if found else []
        if not cells or any(len(cell.devices) < slot.cell.working for slot, cell in zip(order, cells, strict=True)):
            for slot in unbound:
                self._free.allocate(slot.cell)
            return set()
        changed: set[str] = set()
        for slot in unbound:
            changed.update(self._release_devices(slot))
        for slot, cell in zip(order, cells, strict=True):
            slot.cell = cell
            self._free.allocate(cell)
            changed.update(self._assign_devices(slot))
        return changed

    # --- moving a plan

    def _move(self, slot: Slot, cell: TopologyCell, other: Slot | None) -> set[str]:
        """Move the slot to `cell`, which is free or the plan of `other`. With `other`, the two slots change places."""
        changed = self._release_devices(slot)
        before, slot.cell = slot.cell, cell
        if other:
            changed |= self._release_devices(other)
            other.cell = before
            changed |= self._assign_devices(other)
        else:
            self._free.allocate(cell)
            self._free.release(before)
        return changed | self._assign_devices(slot)

    def _assign_devices(self, slot: Slot) -> set[str]:
        """Make the slot the owner of its devices, and guests of its tenant its clients."""
        for uuid in slot.cell.devices:
            self.owners[uuid] = slot
            own = {client for client in self._guests.get(uuid, ()) if self._tenants[client] == slot.tenant}
            if own:
                slot.clients |= own
                self._guests[uuid] -= own
                self._forget_guest_counts(uuid)
        return set(slot.cell.devices)

    def _release_devices(self, slot: Slot) -> set[str]:
        """Give up the slot's devices. The slot's clients on a failed device stay there as guests."""
        for uuid in slot.cell.devices:
            if self.owners.get(uuid) is slot:
                del self.owners[uuid]
            if slot.clients:
                self._guests.setdefault(uuid, set()).update(slot.clients)
                self._forget_guest_counts(uuid)
        slot.clients.clear()
        return set(slot.cell.devices)


def _cells_by_level(cells: Mapping[str, Mapping[str, int]]) -> list[list[tuple[str, int]]]:
    counts: list[list[tuple[str, int]]] = [[] for _ in LEVELS]
    for tenant, levels in cells.items():
        for name, count in levels.items():
            counts[LEVELS.index(name)].append((tenant, count))
    return counts
