"""Virtual time: what will happen, in order, and whom it happens to."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..agent.rule import ffi
from ..core import events as ev
from ..core.commands import Permit
from ..wire.page import CLOSING, IN, OUT
from .workload import Cell, Participant

# Kinds of appointments: a client has at most one of each.
WORK, GATE, IDLE, EVICT, RESTORE, LIFE, METER = range(7)
# What a client's program does.
AWAY, THINKING, ON_CPU, ON_GPU = range(4)


class Agent:
    """The compiled rule's state and inputs of a process with so many devices. Each bell rings when it looks."""

    def __init__(self, devices: int = 1) -> None:
        self.state: Any = ffi.new("struct agent *")
        self.inputs: Any = ffi.new("struct agent_inputs *")
        self.permit: Any = self.inputs.permit
        self.inputs.own_devices, self.inputs.bell = (1 << devices) - 1, 1


@dataclass(eq=False, slots=True)
class SimDevice:
    """A device's memory and link. `used` bytes are resident, `arriving` and `leaving` are on their way; the link's
    directions are busy until `in_free` and `out_free`."""

    uuid: str
    index: int
    memory: int
    link: float
    used: int = 0
    arriving: int = 0
    leaving: int = 0
    in_free: float = 0.0
    out_free: float = 0.0
    working: dict[int, SimClient] = field(default_factory=dict)
    present: dict[int, SimClient] = field(default_factory=dict)  # whose memory may be there
    last: int = -1  # the client that had it last
    turn: int = 0  # the number of the turn that has it; 0: none
    inside: dict[int, SimClient] = field(default_factory=dict)  # in that turn
    busy: float = 0.0  # seconds in which somebody worked on it
    busy_since: float = 0.0
    failed: bool = False


@dataclass(eq=False, slots=True)
class SimClient:
    """A client's program and process, and what they have gone through. Times that are negative: not now."""

    spec: Participant
    index: int
    id: str = ""
    number: int = 0  # of its process; 0: none
    devices: tuple[SimDevice, ...] = ()
    appointments: list[int] = field(default_factory=lambda: [-1] * 7)
    lives: Iterator[tuple[float, str]] = field(default_factory=lambda: iter(()))
    life: str = ""
    # its program
    doing: int = AWAY
    cells: Iterator[Cell] = field(default_factory=lambda: iter(()))
    phases: Iterator[float] = field(default_factory=lambda: iter(()))
    on_gpu_next: bool = False
    remaining: float = 0.0  # GPU seconds of the present phase
    worked_at: float = -1.0  # up to when `remaining` is settled, while it works on the device
    rate: float = 1.0
    most: float = 1.0  # of the device's time, as the scheduler allows
    wanting_since: float = -1.0
    cell_began: float = -1.0
    cell_wait: float = 0.0
    cell_gpu: float = 0.0
    cell_cpu: float = 0.0
    done: float = 0.0  # GPU seconds, of all cells
    busy: float = 0.0  # seconds in which it worked, at whatever rate
    waited: float = 0.0
    # its process
    agent: Agent = field(default_factory=Agent)
    phase: int = OUT
    permit: Permit | None = None
    turn: int = 0  # the number of the turn that it is in; 0: none
    opening: bool = False  # in the turn, and its memory still comes
    waiting: bool = False  # its thread stands at the gate
    quiet: bool = False  # the rule has found that it does not work, while another client waits
    idle: bool = False  # for so long that the scheduler knows it
    idle_since: float = 0.0
    turn_began: float = -1.0
    # its memory
    allocated: int = 0
    resident: int = 0
    target: int | None = None
    moving_out: int = 0
    out_began: float = 0.0
    out_ends: float = 0.0
    moving_in: int = 0
    in_began: float = 0.0
    in_ends: float = 0.0
    # events that are the same each time
    wanted: ev.Wanted = field(default_factory=lambda: ev.Wanted(0))
    cell_started: ev.CellStarted = field(default_factory=lambda: ev.CellStarted("", ""))
    cell_ended: ev.CellEnded = field(default_factory=lambda: ev.CellEnded("", ""))

    @property
    def is_open(self) -> bool:
        """Return whether its thread may submit work."""
        return self.phase == IN and not self.opening

    @property
    def has_opened(self) -> bool:
        """Return whether its work in this turn has begun, and has not finished."""
        return self.phase in (IN, CLOSING) and not self.opening

    def __post_init__(self) -> None:
        self.id = self.spec.id
        self.cell_started = ev.CellStarted(self.id, "cell")
        self.cell_ended = ev.CellEnded(self.id, "cell")


class Agenda:
    """The appointments. A new one of the same client and kind replaces the old."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handled = 0  # appointments kept
        self._heap: list[tuple[float, int, int, SimClient]] = []
        self._made = 0
        self._actions: list[Callable[[SimClient], None]] = []

    def at(self, time: float, kind: int, client: SimClient) -> None:
        self._made = made = self._made + 1
        client.appointments[kind] = made
        heapq.heappush(self._heap, (time, made, kind, client))
