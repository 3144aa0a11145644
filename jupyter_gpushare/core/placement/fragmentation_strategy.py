"""Fragmentation gradient descent (Weng et al., "Beware of Fragmentation", USENIX ATC'23).

The fragmentation of a node for a typical request is the part of its free device fractions that this request could not
use. If the node has no place for the request, all free fractions count; else those of devices that are too full count.
The expected fragmentation is the mean over typical requests, weighted by their frequency. A client goes where the
expected fragmentation grows least. The typical requests are learnt from recent requests.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sortedcontainers import SortedList

from .device_allocations import FULL_DEVICE, DeviceAllocations
from .strategies import FitTest, PackStrategy, SpreadStrategy, first_fit

RequestSize = tuple[int, int]  # thousandths of each device, devices

_SIZE_STEP = 10  # thousandths of a device; sizes are rounded up to a multiple of it
_MAX_TYPICAL_SIZES = 16  # number of typical requests that are distinguished
_INITIAL_COUNTS: Counter[RequestSize] = Counter(
    {(250, 1): 8, (500, 1): 8, (FULL_DEVICE, 1): 16, (FULL_DEVICE, 4): 1, (FULL_DEVICE, 8): 1}
)
_MIN_LEARNED_REQUESTS = 200  # requests from which on the initial counts are no longer used
_MAX_ORDERS = 64  # number of request sizes with an order of nodes


class TypicalRequests:
    """Frequency of each request size over the last `window` requests."""

    def __init__(self, window: int = 1000) -> None:
        self._recent: deque[RequestSize] = deque(maxlen=window)
        self._counts: Counter[RequestSize] = Counter()
        self._uncounted = 0
        self.weights: dict[RequestSize, float] = _weights(_INITIAL_COUNTS)
        self.version = 0

    def add(self, size: int, gpus: int) -> None:
        """Add a request. The weights change only now and then, and only if the change is large enough."""
        if size <= 0:
            return
        if len(self._recent) == self._recent.maxlen:
            self._counts[self._recent[0]] -= 1
        request_size = (min(FULL_DEVICE, -(-size // _SIZE_STEP) * _SIZE_STEP), gpus)
        self._recent.append(request_size)
        self._counts[request_size] += 1
        self._uncounted += 1
        if self._uncounted * 4 >= len(self._recent):
            self._uncounted = 0
            weights = _weights(
                self._counts if len(self._recent) > _MIN_LEARNED_REQUESTS else self._counts + _INITIAL_COUNTS
            )
            keys = dict.fromkeys((*weights, *self.weights))
            if sum(abs(weights.get(key, 0.0) - self.weights.get(key, 0.0)) for key in keys) > 0.2:
                self.weights = weights
                self.version += 1


def _weights(counts: Counter[RequestSize]) -> dict[RequestSize, float]:
    common = [(request_size, count) for request_size, count in counts.most_common(_MAX_TYPICAL_SIZES) if count > 0]
    total = sum(count for _, count in common)
    return {request_size: count / total for request_size, count in common}


def fragmentation(free: Sequence[int], weights: Iterable[tuple[RequestSize, float]]) -> float:
    """Return the expected unusable thousandths on one node whose devices have `free` thousandths left."""
    total = 0.0
    residual = sum(free)
    for (size, gpus), weight in weights:
        unusable = residual if sum(f >= size for f in free) < gpus else sum(f for f in free if f < size)
        total += weight * unusable
    return total


@dataclass(eq=False)
class _Node:
    order: int
    by_free: dict[int, dict[str, DeviceAllocations]] = field(default_factory=dict)

    @property
    def state(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((free, len(devices)) for free, devices in self.by_free.items()))


Entry = tuple[float, int, int, int, tuple[int, ...]]  # growth, free of devices used, free in all, node, free of each


class FragmentationGradientDescent:
    """Strategy that keeps, for each request size, the nodes in the order in which their fragmentation would grow.

    Entries of changed nodes are updated before use.
    """

    def __init__(self, typical: TypicalRequests) -> None:
        self._typical = typical
        self._version = typical.version
        self._free: dict[str, int] = {}
        self._nodes: dict[str, _Node] = {}
        self._nodes_by_number: list[_Node] = []
        self._orders: dict[RequestSize, _RequestSizeOrder] = {}
        self._growth: dict[tuple[tuple[tuple[int, int], ...], RequestSize], list[tuple[float, tuple[int, ...]]]] = {}
        self._spread = SpreadStrategy()
        self._pack = PackStrategy()

    def update(self, device: DeviceAllocations) -> None:
        self._spread.update(device)
        self._pack.update(device)
        before = self._free.get(device.uuid)
        if before == device.free_thousandths:
            return
        if before is not None:
            self._drop(device, before)
        node = self._nodes.get(device.node)
        if node is None:
            node = self._nodes[device.node] = _Node(len(self._nodes))
            self._nodes_by_number.append(node)
        node.by_free.setdefault(device.free_thousandths, {})[device.uuid] = device
        self._free[device.uuid] = device.free_thousandths
        self._mark_stale(node)

    def remove(self, device: DeviceAllocations) -> None:
        self._spread.remove(device)
        self._pack.remove(device)
        if device.uuid in self._free:
            self._drop(device, self._free.pop(device.uuid))

    def choose(self, size: int, gpus: int, fits: FitTest, needs_room: bool) -> tuple[DeviceAllocations, ...] | None:
        """Choose the devices. A client of size 0 leaves nothing unusable, so such clients are spread."""
        if not size:
            return self._spread.choose(size, gpus, fits, needs_room)
        for *_, number, frees in self._order((min(FULL_DEVICE, size), gpus)):
            by_free = self._nodes_by_number[number].by_free
            devices = [
                device for free in sorted(set(frees)) for device in sorted(by_free[free].values(), key=_device_order)
            ]
            found = first_fit(devices, gpus, fits, is_tight=True)
            if found:
                return found
        return self._pack.choose(size, gpus, fits, needs_room)  # the best devices of every node do not fit

    def sort(self, devices: Iterable[DeviceAllocations], size: int) -> list[DeviceAllocations]:
        if not size:
            return self._spread.sort(devices, size)

        def growth(device: DeviceAllocations) -> float:
            node = self._nodes.get(device.node)
            if node is None or device.free_thousandths < size:
                return float("inf")
            return self._fragmentation_increase(node, (device.free_thousandths,), size)

        return sorted(self._pack.sort(devices, size), key=growth)

    # --- orders

    def _drop(self, device: DeviceAllocations, free: int) -> None:
        node = self._nodes[device.node]
        del node.by_free[free][device.uuid]
        if not node.by_free[free]:
            del node.by_free[free]
        self._mark_stale(node)

    def _mark_stale(self, node: _Node) -> None:
        for order in self._orders.values():
            order.stale.add(node.order)

    def _order(self, request_size: RequestSize) -> Iterable[Entry]:
        if self._version != self._typical.version or len(self._orders) > _MAX_ORDERS:
            self._version = self._typical.version
            self._orders.clear()
            self._growth.clear()
        order = self._orders.get(request_size)
        if order is None:
            order = self._orders[request_size] = _RequestSizeOrder(set(range(len(self._nodes_by_number))))
        for number in order.stale:
            order.replace(number, self._entries(self._nodes_by_number[number], request_size))
        order.stale.clear()
        entries: Iterable[Entry] = order.entries
        return entries

    def _entries(self, node: _Node, request_size: RequestSize) -> list[Entry]:
        state = node.state
        grown = self._growth.get((state, request_size))
        if grown is None:
            grown = [
                (self._fragmentation_increase(node, frees, request_size[0]), frees)
                for frees in _choices(state, request_size)
            ]
            if len(state) <= 16:
                self._growth[state, request_size] = grown
        residual = sum(free * count for free, count in state)
        return [(growth, sum(frees), residual, node.order, frees) for growth, frees in grown]

    def _fragmentation_increase(self, node: _Node, frees: tuple[int, ...], size: int) -> float:
        """Return by how much the node's fragmentation grows if `size` is taken of devices with these free parts."""
        counts = [(free, len(devices)) for free, devices in node.by_free.items()]
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


class _RequestSizeOrder:
    """The entries of all nodes for one request size. `stale` nodes have changed since their entries were made."""

    def __init__(self, stale: set[int]) -> None:
        self.stale = stale
        self.entries: SortedList[Entry] = SortedList()
        self._entries_by_node: dict[int, list[Entry]] = {}

    def replace(self, number: int, entries: list[Entry]) -> None:
        for entry in self._entries_by_node.get(number, ()):
            self.entries.remove(entry)
        self._entries_by_node[number] = entries
        self.entries.update(entries)


def _device_order(device: DeviceAllocations) -> int:
    return device.order


def _choices(state: tuple[tuple[int, int], ...], request_size: RequestSize) -> list[tuple[int, ...]]:
    """Return the free parts of the devices that the request can use; for a gang, only the fullest that are enough."""
    size, gpus = request_size
    if gpus == 1:
        return [(free,) for free, _ in state if free >= size]
    enough = [free for free, count in state if free >= size for _ in range(min(count, gpus))]
    return [tuple(enough[:gpus])] if len(enough) >= gpus else []
