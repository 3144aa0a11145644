"""Memory of a process on each of its devices, by the rows of its page.

A process of mode `swap` knows the device of each block. Other memory has no row, and counts in equal parts on all
devices of the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.base.memory_use import NO_MEMORY, MemoryUse


@dataclass
class DeviceMemory:
    """Memory of one process by device. `is_exact`: the page shows the device of all memory."""

    by_device: dict[str, MemoryUse]
    is_exact: bool = True


def read_use(report: Any, bound: MemoryUse) -> MemoryUse:
    """Return the memory in a report, or in a row of it, of which each figure is at most that of `bound`."""
    allocated = min(int(report.allocated), bound.allocated)
    resident = min(int(report.resident), allocated, bound.resident)
    unmade = min(int(report.unmade), allocated - resident, bound.unmade)
    return MemoryUse(allocated, resident, min(int(report.unmovable), resident, bound.unmovable), unmade=unmade)


def divide(
    total: MemoryUse, devices: Sequence[str], rows: Iterable[tuple[str, Any]], full_devices: Sequence[str]
) -> DeviceMemory:
    """Divide the memory of a process among its devices. `rows` has the rows of the page, with the device of each.

    The unmet bytes count in full on each of the `full_devices`.
    """
    if len(devices) == 1:
        return DeviceMemory({devices[0]: total})
    rest = replace(total, unmet=0)
    by_device = dict.fromkeys(devices, NO_MEMORY)
    for uuid, row in rows:
        use = read_use(row, rest)
        by_device[uuid] = by_device[uuid].plus(use)
        rest = _without(rest, use)
    part = rest.part(max(1, len(devices)))
    for uuid in devices:
        unmet = total.unmet if uuid in full_devices else 0
        by_device[uuid] = replace(by_device[uuid].plus(part), unmet=unmet)
    return DeviceMemory(by_device, not rest.allocated)


def _without(rest: MemoryUse, use: MemoryUse) -> MemoryUse:
    """Return the memory without a part of it. A page that is being written may show a part that does not fit."""
    allocated = rest.allocated - use.allocated
    resident = min(rest.resident - use.resident, allocated)
    unmade = min(rest.unmade - use.unmade, allocated - resident)
    return MemoryUse(allocated, resident, min(rest.unmovable - use.unmovable, resident), unmade=unmade)
