"""Reader and writer of traces, which have the devices, the clients and the cells of a workload.

A line of a trace is one JSON object.
docs/explanation/simulator.md describes the format.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...core.base.errors import Refused
from ...core.base.quota import Quota
from .workload import Cell, Participant

VERSION = 1
MIN_REPEATED_SECONDS = 0.001  # of all phases of an endless cell, to bound the time of a simulation
MIN_STEP_SECONDS = 0.001  # of a training step, which is much longer than the rounding of times

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Bytes = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class InvalidTrace(ValueError):
    """Error about a trace. The message has the file, the line, the problem and the allowed values."""


def csv_rows(path: str, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV file with these columns, each with its line number. Raises InvalidTrace, OSError."""
    content = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)  # which spreadsheets write
    try:
        rows = csv.DictReader(io.StringIO(content.decode(), newline=""))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidTrace(f"{path}, line {line}: {error.reason} (allowed is UTF-8)") from None
    try:
        missing = [name for name in columns if name not in (rows.fieldnames or ())]
        if missing:
            raise InvalidTrace(
                f"{path}, line 1: columns {', '.join(missing)} are missing: needed are {', '.join(columns)}"
            )
        for row in rows:
            if None in row:
                raise InvalidTrace(
                    f"{path}, line {rows.reader.line_num}: there are more values than the {len(row) - 1} columns"
                )
            yield rows.reader.line_num, row
    except csv.Error as error:
        raise InvalidTrace(f"{path}, line {rows.reader.line_num}: {error}") from None


class _Line(
    msgspec.Struct, tag_field="type", frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    pass


class HeaderLine(_Line, tag="trace", frozen=True, kw_only=True):
    """First line; `seconds` is the duration of the recording."""

    version: int
    name: str = ""
    seconds: Seconds | None = None


class DeviceLine(_Line, tag="device", frozen=True, kw_only=True):
    """Device with `memory` in bytes and `link` in bytes a second, each way; `parent`: the GPU of a MIG slice."""

    memory: Annotated[int, msgspec.Meta(gt=0, lt=1 << 62)]
    link: Annotated[float, msgspec.Meta(gt=0)] | None = None
    parent: Annotated[str, msgspec.Meta(max_length=128)] = ""


class ClientLine(_Line, tag="client", frozen=True, kw_only=True):
    """Client that arrives at `at` and departs at `until` (null: never)."""

    id: Name
    at: Seconds = 0.0
    until: Seconds | None = None
    user: Name = "1000"
    memory: Bytes = 0
    gpus: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    kind: str = "notebook"
    intensity: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    launch: Annotated[float, msgspec.Meta(gt=0, le=60)] = 0.0005
    quota: dict[str, Any] = {}
    restarts: list[Seconds] = []
    step: Seconds = 0.0


class CellLine(_Line, tag="cell", frozen=True, kw_only=True):
    """Next cell of a client, `think` seconds after the end of the last one; `repeat` makes its phases endless."""

    client: Name
    phases: Annotated[list[Seconds], msgspec.Meta(min_length=1)]
    think: Seconds = 0.0
    repeat: bool = False


Line = HeaderLine | DeviceLine | ClientLine | CellLine
_decoder = msgspec.json.Decoder(Line)


@dataclass(frozen=True)
class Trace:
    """Contents of a trace; `seconds` is the duration of the recording."""

    name: str
    participants: tuple[Participant, ...]
    devices: tuple[DeviceLine, ...] = ()
    seconds: float | None = None


@dataclass
class _TraceReader:
    """Reader of a trace with the lines read so far."""

    head: HeaderLine | None = None
    devices: list[DeviceLine] = field(default_factory=list)
    clients: dict[str, ClientLine] = field(default_factory=dict)
    cells: dict[str, list[Cell]] = field(default_factory=dict)

    def add_line(self, line: Line) -> None:
        """Add a line. Raises ValueError if the line contradicts the lines before."""
        if self.head is None:
            if not isinstance(line, HeaderLine):
                raise ValueError('the first line must be {"type": "trace", "version": 1}')
            if line.version != VERSION:
                raise ValueError(f"version {line.version} is unknown: allowed is {VERSION}")
            self.head = line
        elif isinstance(line, HeaderLine):
            raise ValueError('a second line of type "trace": only the first line may have it')
        elif isinstance(line, DeviceLine):
            self.devices.append(line)
        elif isinstance(line, ClientLine):
            self._add_client(line)
        else:
            self._add_cell(line)

    def _add_client(self, line: ClientLine) -> None:
        if line.id in self.clients:
            raise ValueError(f"client {line.id!r} has two lines")
        if line.kind not in ("notebook", "job"):
            raise ValueError(f"kind {line.kind!r} is unknown: allowed are notebook, job")
        if line.until is not None and line.until < line.at:
            raise ValueError(f"client {line.id!r} departs at {line.until:g}, before it arrives at {line.at:g}")
        if 0 < line.step < MIN_STEP_SECONDS:
            raise ValueError(f"step={line.step:g} is out of range: allowed are 0 and {MIN_STEP_SECONDS:g} s or more")
        try:
            Quota().with_changes(line.quota)
        except (Refused, TypeError) as error:
            raise ValueError(f"quota of client {line.id!r}: {error}") from None
        self.clients[line.id] = line
        self.cells[line.id] = []

    def _add_cell(self, line: CellLine) -> None:
        if line.client not in self.clients:
            raise ValueError(f"client {line.client!r} is unknown: its line must come before its cells")
        if line.repeat and sum(line.phases) < MIN_REPEATED_SECONDS:
            raise ValueError(f"phases that are repeated must take {MIN_REPEATED_SECONDS:g} s or more in all")
        phases: Iterable[float] = line.phases
        if line.repeat:
            phases = _RepeatedPhases(tuple(line.phases))
        self.cells[line.client].append(Cell(line.think, phases))

    def build_trace(self, name: str) -> Trace:
        assert self.head is not None
        participants = tuple(
            Participant(
                line.id,
                tuple(self.cells[line.id]),
                line.memory,
                line.user,
                Quota().with_changes(line.quota),
                line.gpus,
                line.at,
                line.until,
                line.kind,
                line.intensity,
                line.launch,
                tuple(sorted(line.restarts)),
                line.step,
            )
            for line in self.clients.values()
        )
        return Trace(self.head.name or name, participants, tuple(self.devices), self.head.seconds)


class _RepeatedPhases:
    """Endless repetition of phases. An odd number of phases gets an empty GPU phase, so that CPU and GPU alternate."""

    def __init__(self, phases: tuple[float, ...]) -> None:
        self._phases = phases if len(phases) % 2 == 0 else (*phases, 0.0)

    def __iter__(self) -> Iterator[float]:
        return itertools.cycle(self._phases)


def read(path: str) -> Trace:
    """Read a trace file. Raises InvalidTrace, OSError."""
    reader = _TraceReader()
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                reader.add_line(_decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
                allowed = "allowed types are trace, device, client, cell; see docs/explanation/simulator.md"
                raise InvalidTrace(f"{path}, line {number}: {error} ({allowed})") from None
    if not reader.clients:
        raise InvalidTrace(f"{path}: the trace has no client")
    return reader.build_trace(Path(path).name)


def write(path: str, lines: Iterable[Line]) -> None:
    """Write a trace file. Raises OSError."""
    encoder = msgspec.json.Encoder()
    with Path(path).open("wb") as file:
        for line in lines:
            file.write(encoder.encode(line) + b"\n")


def needed_devices(participants: Iterable[Participant], memory: int) -> int:
    """Return the number of devices for the memory of all simultaneous clients, as if memory could be split at will."""
    changes = sorted(
        change
        for one in participants
        for change in ((one.arrives, one.memory), (math.inf if one.departs is None else one.departs, -one.memory))
    )
    max_bytes = max(itertools.accumulate(size for _, size in changes), default=0)
    max_gpus = max((one.gpus for one in participants), default=1)
    return max(1, math.ceil(max_bytes / memory), max_gpus)
