"""Reader of the simulated driver's execution log (`GPUSHARE_SIM_LOG=DIR`, one `DIR/PID.simlog` per process).

A record has 48 bytes, little endian: begin_ns, end_ns (u64, CLOCK_MONOTONIC), pid, kind, device, stream (u32),
bytes, sequence (u64). The file grows by many empty records at a time. An empty record has begin_ns 0, and no empty
record comes before a written one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

RECORD = struct.Struct("<QQIIIIQQ")
BLOCK = 256 * RECORD.size
KINDS = {
    1: "launch",
    2: "host to device",
    3: "device to host",
    4: "device to device",
    5: "set",
    6: "prefetch to device",
    7: "prefetch to host",
}


class Execution(NamedTuple):
    """Execution on a device. Times are CLOCK_MONOTONIC nanoseconds."""

    begin_ns: int
    end_ns: int
    pid: int
    kind: str
    device: int
    stream: int
    bytes: int
    sequence: int


class Log:
    """Log file for repeated reading, which reads each record only once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: list[Execution] = []

    def read(self) -> list[Execution]:
        """Return all executions in the order of writing, also while the driver writes the file."""
        if self.path.exists():
            del self._found[-1:]  # the driver may have been writing the last record when it was read
            with self.path.open("rb") as file:
                file.seek(len(self._found) * RECORD.size)
                while self._add(file.read(BLOCK)):
                    pass
        return list(self._found)

    def _add(self, data: bytes) -> bool:
        """Add the records of a block, and return whether the file may have more."""
        for offset in range(0, len(data) - RECORD.size + 1, RECORD.size):
            begin, end, pid, kind, *rest = RECORD.unpack_from(data, offset)
            if not begin:
                return False
            self._found.append(Execution(begin, end, pid, KINDS.get(kind, str(kind)), *rest))
        return len(data) == BLOCK


def read_all(directory: Path) -> dict[int, list[Execution]]:
    """Return, by process id, the executions that a directory's logs have."""
    return {int(path.stem): Log(path).read() for path in sorted(directory.glob("*.simlog"))}


def overlap_seconds(groups: Iterable[Iterable[Execution]]) -> float:
    """Return how long executions of different groups, such as processes, were on the same device at the same time."""
    edges = []
    for number, group in enumerate(groups):
        for execution in group:
            edges.append((execution.begin_ns, 1, execution.device, number))
            edges.append((execution.end_ns, -1, execution.device, number))
    running: dict[int, dict[int, int]] = {}
    overlap = before = 0
    for time, change, device, number in sorted(edges):
        busiest = max((sum(count > 0 for count in counts.values()) for counts in running.values()), default=0)
        if busiest > 1:
            overlap += time - before
        counts = running.setdefault(device, {})
        counts[number] = counts.get(number, 0) + change
        before = time
    return overlap / 1e9
