"""Record of the phases of all clients, from the coordinator's snapshots, and the overlap of their launches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from ..wire.client import Unreachable


class PhaseRecorder:
    """Recorder of lanes `{label: [(seconds since began, phase)]}` and of the last snapshot of each client.

    `have_all_allocated` is set when `clients` clients have allocated `bytes_each` bytes each, and no two of them are
    colocated any more, as they were while they had less memory.
    """

    def __init__(self, clients: int, bytes_each: int) -> None:
        self.have_all_allocated = asyncio.Event()
        self._clients, self._bytes_each = clients, bytes_each
        self.began = time.monotonic()
        self.lanes: dict[str, list[tuple[float, str]]] = {}
        self.clients: dict[str, dict[str, Any]] = {}
        self.devices: list[dict[str, Any]] = []
        self.peak_allocated = 0

    async def record(self, snapshots: AsyncIterator[dict[str, Any]]) -> None:
        """Record until the connection ends."""
        try:
            async for status in snapshots:
                self.on_snapshot(status)
        except Unreachable:
            return
        finally:
            self.have_all_allocated.set()  # no notebook waits for a snapshot that cannot come

    def on_snapshot(self, status: dict[str, Any]) -> None:
        now = time.monotonic() - self.began
        self.devices = status["devices"] or self.devices
        self.peak_allocated = max(self.peak_allocated, sum(client["allocated"] for client in status["clients"]))
        allocated = sum(client["allocated"] >= self._bytes_each for client in status["clients"])
        in_turn = sum(client["phase"] in ("running", "draining", "overrun") for client in status["clients"])
        if allocated >= self._clients and in_turn <= 1:
            self.have_all_allocated.set()
        present = set()
        for client in status["clients"]:
            label = client["label"]
            present.add(label)
            self.clients[label] = client
            lane = self.lanes.setdefault(label, [])
            if not lane or lane[-1][1] != client["phase"]:
                lane.append((now, client["phase"]))
        for label, lane in self.lanes.items():
            if label not in present and lane[-1][1] != "gone":
                lane.append((now, "gone"))


def intervals(lane: list[tuple[float, str]], end: float) -> list[tuple[float, float, str]]:
    """Return (from, to, phase) of a lane that goes on until `end`, in seconds."""
    following = [*lane[1:], (end, "gone")]
    return [
        (begin, until, phase) for (begin, phase), (until, _) in zip(lane, following, strict=True) if phase != "gone"
    ]


def overlap_seconds(spans: dict[str, list[tuple[int, int]]]) -> float:
    """Return the seconds in which launches of two clients were on the device, from (begin, end) in nanoseconds."""
    edges = sorted(
        (time, kind, label) for label, lane in spans.items() for s in lane for time, kind in zip(s, (1, 0), strict=True)
    )
    active: dict[str, int] = {}
    total = previous = 0
    for moment, kind, label in edges:
        if len(active) > 1:
            total += moment - previous
        previous = moment
        if kind:
            active[label] = active.get(label, 0) + 1
        elif active[label] == 1:
            del active[label]
        else:
            active[label] -= 1
    return total / 1e9
