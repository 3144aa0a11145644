"""Interface of placement strategies, and the strategies spread and pack.

A strategy keeps the devices of one pool in its order, so that the first device that fits is the answer. The cost is
logarithmic in the number of devices, unless many devices do not fit. `first_fit` keeps a gang within the smallest
topology cell that has room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from sortedcontainers import SortedList

from .device_allocations import FULL_DEVICE, DeviceAllocations

FitTest = Callable[[DeviceAllocations], bool]


class PlacementStrategy(Protocol):
    """Order in which the devices of one pool are considered."""

    def update(self, device: DeviceAllocations) -> None:
        """Add a device to the pool, or update a device there whose allocations have changed."""

    def remove(self, device: DeviceAllocations) -> None:
        """Remove the device from the pool, if it is there."""

    def choose(self, size: int, gpus: int, fits: FitTest, needs_room: bool) -> tuple[DeviceAllocations, ...] | None:
        """Return `gpus` devices for a client that takes `size` thousandths of each; None: no such devices fit.

        `needs_room`: only devices with so much free room.
        """

    def sort(self, devices: Iterable[DeviceAllocations], size: int) -> list[DeviceAllocations]:
        """Return these devices in the strategy's order, even if they are not in the pool."""


class _SortedStrategy:
    """Base of strategies that order devices by a key."""

    is_tight = False  # gangs go where they leave the fewest devices

    def __init__(self) -> None:
        self._devices: dict[str, DeviceAllocations] = {}
        self._keys: dict[str, tuple[float, ...]] = {}
        self._sorted: SortedList[tuple[tuple[float, ...], str]] = SortedList()

    def key(self, device: DeviceAllocations) -> tuple[float, ...]:
        raise NotImplementedError

    def update(self, device: DeviceAllocations) -> None:
        key = self.key(device)
        before = self._keys.get(device.uuid)
        if before == key:
            return
        if before is not None:
            self._sorted.remove((before, device.uuid))
        self._devices[device.uuid] = device
        self._keys[device.uuid] = key
        self._sorted.add((key, device.uuid))

    def remove(self, device: DeviceAllocations) -> None:
        if self._devices.pop(device.uuid, None):
            self._sorted.remove((self._keys.pop(device.uuid), device.uuid))

    def choose(self, size: int, gpus: int, fits: FitTest, needs_room: bool) -> tuple[DeviceAllocations, ...] | None:
        return first_fit(self.in_order(size, needs_room), gpus, fits, self.is_tight)

    def in_order(self, size: int, needs_room: bool) -> Iterator[DeviceAllocations]:
        raise NotImplementedError

    def sort(self, devices: Iterable[DeviceAllocations], size: int) -> list[DeviceAllocations]:
        return sorted(devices, key=self.key)


class SpreadStrategy(_SortedStrategy):
    """Strategy for the shortest waits: the device with the least load.

    Among these, the device with the fewest clients, then the device with the least allocated.
    """

    def key(self, device: DeviceAllocations) -> tuple[float, ...]:
        return (device.load, len(device.clients), round(device.allocated_share * FULL_DEVICE), device.order)

    def in_order(self, size: int, needs_room: bool) -> Iterator[DeviceAllocations]:
        """Yield the devices in order.

        Of equally many clients and equal load, the device with the most room comes first.
        So the devices after one without enough room are passed over at once.
        """
        low: tuple[float, ...] = ()
        while True:
            for key, uuid in self._sorted.irange(minimum=(low, "")):
                device = self._devices[uuid]
                if needs_room and device.free_thousandths < size:
                    low = (*key[:2], float("inf"))
                    break
                yield device
            else:
                return


class PackStrategy(_SortedStrategy):
    """Best fit: the device with the least room that is enough, so that whole devices stay free."""

    is_tight = True

    def key(self, device: DeviceAllocations) -> tuple[float, ...]:
        return (device.free_thousandths, -len(device.clients), device.order)

    def in_order(self, size: int, needs_room: bool) -> Iterator[DeviceAllocations]:
        """Return the devices in order. Devices without enough room come last, the device with the most room first."""
        enough = self._sorted.irange(minimum=((size,), ""))
        short = self._sorted.irange(maximum=((size,), ""), inclusive=(True, False), reverse=True)
        return (self._devices[uuid] for _, uuid in (enough if needs_room else chain(enough, short)))

    def sort(self, devices: Iterable[DeviceAllocations], size: int) -> list[DeviceAllocations]:
        ordered = sorted(devices, key=self.key)
        return [b for b in ordered if b.free_thousandths >= size] + [
            b for b in reversed(ordered) if b.free_thousandths < size
        ]


def first_fit(
    ordered: Iterable[DeviceAllocations], gpus: int, fits: FitTest, is_tight: bool = False
) -> tuple[DeviceAllocations, ...] | None:
    """Return the first device that fits; for a gang, devices in the smallest topology cell that has enough.

    A gang is never on several nodes. Of equally small cells, the cell whose devices come first is taken, or, if
    `is_tight`, the cell with the fewest devices to spare.
    """
    if gpus == 1:
        first = next((device for device in ordered if fits(device)), None)
        return None if first is None else (first,)
    candidates = [(rank, device) for rank, device in enumerate(ordered) if fits(device)]
    if len(candidates) < gpus:
        return None
    for level in range(len(candidates[0][1].cell_paths)):
        groups: dict[str, list[tuple[int, DeviceAllocations]]] = {}
        for rank, device in candidates:
            groups.setdefault(device.cell_paths[level], []).append((rank, device))
        enough = [group for group in groups.values() if len(group) >= gpus]
        if enough:
            best = min(enough, key=lambda group: _group_order(group, gpus, is_tight))
            return tuple(device for _, device in best[:gpus])
    return None


def _group_order(group: Sequence[tuple[int, DeviceAllocations]], gpus: int, is_tight: bool) -> tuple[int, int]:
    return len(group) if is_tight else 0, sum(rank for rank, _ in group[:gpus])
