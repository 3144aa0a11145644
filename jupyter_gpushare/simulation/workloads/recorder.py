"""Recorder of traces: the snapshots of a coordinator become clients and cells.

A trace has no name of a user or a file.
Snapshots have only the sums of a cell, so half of its CPU time precedes its GPU time and half follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .traces import VERSION, CellLine, ClientLine, DeviceLine, HeaderLine, Line

SPREAD_SECONDS = 10.0  # length of an interval of a program, for which a trace has no cells
LATE_REPORT_SECONDS = 2.0  # time after a cell's end in which processes may still report its GPU time


@dataclass
class _Cell:
    think: float
    began: float
    busy: float  # the client's sum at the beginning of the cell
    waited: float  # the same
    ended: float | None = None
    phases: list[float] = field(default_factory=list)


@dataclass
class _Client:
    number: int
    user: str
    arrived: float
    quota: dict[str, Any]
    gpus: int = 1
    departed: float | None = None
    memory: int = 0
    last_cell_end: float = 0.0
    cell: _Cell | None = None
    cells: list[_Cell] = field(default_factory=list)
    busy: float = 0.0
    waited: float = 0.0
    initial_usage: tuple[float, float] = (0.0, 0.0)  # `busy` and `waited` in the first snapshot of the client


class Recorder:
    """Recorder of snapshots; `lines` yields the trace so far."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._now = 0.0
        self._devices: dict[str, int] = {}
        self._clients: dict[str, _Client] = {}
        self._user_names: dict[str, str] = {}

    def on_snapshot(self, status: dict[str, Any], time: float) -> None:
        """Record a snapshot of docs/reference/wire.md, at `time` in seconds of any clock."""
        if self._began is None:
            self._began = time
        self._now = now = time - self._began
        for device in status["devices"]:
            self._devices[device["uuid"]] = device["memory_total"]
        present = set()
        for row in status["clients"]:
            present.add(row["id"])
            self._update_client(row, now)
        for identity, client in self._clients.items():
            if identity not in present and client.departed is None:
                client.departed = now
                self._end_cell(client, now)
                self._complete_cell(client)

    def advance(self, time: float) -> None:
        """Record that nothing has changed up to `time`."""
        if self._began is not None:
            self._now = max(self._now, time - self._began)

    def _update_client(self, row: dict[str, Any], now: float) -> None:
        client = self._clients.get(row["id"])
        if client is None:
            user = self._user_names.setdefault(row["user"], f"user-{len(self._user_names) + 1}")
            quota = {name: value for name, value in row["quota"].items() if value is not None}
            client = self._clients[row["id"]] = _Client(len(self._clients) + 1, user, now, quota, last_cell_end=now)
            client.busy, client.waited = client.initial_usage = _busy_seconds(row), row["wait_seconds"]
        client.departed = None
        client.gpus = max(client.gpus, len(row["devices"]))
        client.memory = max(client.memory, row["allocated"])
        if (
            client.cell
            and client.cell.ended is not None
            and (row["cells"] or now > client.cell.ended + LATE_REPORT_SECONDS)
        ):
            client.busy, client.waited = max(client.busy, _busy_seconds(row)), row["wait_seconds"]
            self._complete_cell(client)
        if row["cells"] and not client.cell:
            client.cell = _Cell(now - client.last_cell_end, now, client.busy, client.waited)
        client.busy, client.waited = max(client.busy, _busy_seconds(row)), row["wait_seconds"]
        if not row["cells"]:
            self._end_cell(client, now)

    def _end_cell(self, client: _Client, now: float) -> None:
        if client.cell and client.cell.ended is None:
            client.cell.ended = client.last_cell_end = now

    def _complete_cell(self, client: _Client) -> None:
        """Compute the phases of the client's last cell, which has ended and is fully reported."""
        cell, client.cell = client.cell, None
        if cell is None:
            return
        cell.phases = self._phases(cell, client, cell.ended if cell.ended is not None else self._now)
        client.cells.append(cell)

    def _phases(self, cell: _Cell, client: _Client, ended: float) -> list[float]:
        free = max(0.0, ended - cell.began - max(0.0, client.waited - cell.waited))
        gpu = min(max(0.0, client.busy - cell.busy), free)
        cpu = (free - gpu) / 2
        return [round(cpu, 6), round(gpu, 6), round(cpu, 6)]

    def _spread_phases(self, client: _Client) -> list[float]:
        free = (
            (self._now if client.departed is None else client.departed)
            - client.arrived
            - (client.waited - client.initial_usage[1])
        )
        gpu = client.busy - client.initial_usage[0]
        count = max(1, round(free / SPREAD_SECONDS))
        return [round(max(0.0, free - gpu) / count, 6), round(gpu / count, 6)] * count

    def lines(self) -> Iterator[Line]:
        yield HeaderLine(version=VERSION, name="recorded", seconds=round(self._now, 3))
        for memory in self._devices.values():
            if memory > 0:
                yield DeviceLine(memory=memory)
        for client in self._clients.values():
            name = f"client-{client.number}"
            yield ClientLine(
                id=name,
                at=round(client.arrived, 6),
                until=None if client.departed is None else round(client.departed, 6),
                user=client.user,
                memory=client.memory,
                gpus=client.gpus,
                quota=client.quota,
            )
            cells = list(client.cells)
            if client.cell:
                client.cell.phases = self._phases(client.cell, client, client.cell.ended or self._now)
                cells.append(client.cell)
            if not cells and client.busy > client.initial_usage[0]:
                yield CellLine(client=name, phases=self._spread_phases(client))
            for cell in cells:
                if sum(cell.phases):
                    yield CellLine(client=name, think=round(cell.think, 6), phases=cell.phases)


def _busy_seconds(row: dict[str, Any]) -> float:
    """Return the busy time of a client, or without a report of its processes the time that it had the device."""
    return float(row.get("gpu_busy_seconds") or row["gpu_seconds"])
