"""Virtual time: what will happen, in order, and whom it happens to."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..agent.rule import ffi
from ..core.interface import events as ev
from ..core.interface.commands import Permit
from ..wire.page import CLOSING, IN, OUT
from .workload import Cell, Participant

# Kinds of appointments: a client has at most one of each.
WORK, GATE, IDLE, EVICT, RESTORE, LIFECYCLE, SAMPLE = range(7)
# What a client's program does.
INACTIVE, THINKING, ON_CPU, ON_GPU = range(4)


class AgentRuleState:
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
    resident_bytes: int = 0
    restoring_bytes: int = 0
    evicting_bytes: int = 0
    restore_link_free_at: float = 0.0
    evict_link_free_at: float = 0.0
    working_clients: dict[int, SimClient] = field(default_factory=dict)
    clients: dict[int, SimClient] = field(default_factory=dict)  # whose memory may be there
    last_client_index: int = -1  # the client that had it last
    turn_number: int = 0  # the number of the turn that has it; 0: none
    clients_in_turn: dict[int, SimClient] = field(default_factory=dict)  # in that turn
    busy_seconds: float = 0.0  # seconds in which somebody worked on it
    busy_since: float = 0.0
    has_failed: bool = False


@dataclass(eq=False, slots=True)
class SimClient:
    """A client's program and process, and what they have gone through. Times that are negative: not now."""

    spec: Participant
    index: int
    id: str = ""
    process_number: int = 0  # of its process; 0: none
    devices: tuple[SimDevice, ...] = ()
    timers: list[int] = field(default_factory=lambda: [-1] * 7)
    lifecycle: Iterator[tuple[float, str]] = field(default_factory=lambda: iter(()))
    next_lifecycle_event: str = ""
    # its program
    activity: int = INACTIVE
    cells: Iterator[Cell] = field(default_factory=lambda: iter(()))
    phases: Iterator[float] = field(default_factory=lambda: iter(()))
    is_next_phase_on_gpu: bool = False
    remaining_gpu_seconds: float = 0.0  # GPU seconds of the present phase
    accounted_until: float = -1.0  # up to when `remaining` is settled, while it works on the device
    rate: float = 1.0
    max_rate: float = 1.0  # of the device's time, as the scheduler allows
    waiting_since: float = -1.0
    cell_started_at: float = -1.0
    cell_wait: float = 0.0
    cell_gpu: float = 0.0
    cell_cpu: float = 0.0
    gpu_seconds: float = 0.0  # GPU seconds, of all cells
    busy_seconds: float = 0.0  # seconds in which it worked, at whatever rate
    wait_seconds: float = 0.0
    # its process
    agent: AgentRuleState = field(default_factory=AgentRuleState)
    phase: int = OUT
    permit: Permit | None = None
    turn_number: int = 0  # the number of the turn that it is in; 0: none
    is_restoring: bool = False  # in the turn, and its memory still comes
    is_waiting_at_gate: bool = False  # its thread stands at the gate
    is_quiet: bool = False  # the rule has found that it does not work, while another client waits
    is_idle: bool = False  # for so long that the scheduler knows it
    idle_since: float = 0.0
    turn_entered_at: float = -1.0
    # its memory
    allocated: int = 0
    resident: int = 0
    resident_target: int | None = None
    evicting_bytes: int = 0
    eviction_start: float = 0.0
    eviction_end: float = 0.0
    restoring_bytes: int = 0
    restore_start: float = 0.0
    restore_end: float = 0.0
    # events that are the same each time
    gate_wait_started: ev.GateWaitStarted = field(default_factory=lambda: ev.GateWaitStarted(0))
    cell_started: ev.CellStarted = field(default_factory=lambda: ev.CellStarted("", ""))
    cell_ended: ev.CellEnded = field(default_factory=lambda: ev.CellEnded("", ""))

    @property
    def is_gate_open(self) -> bool:
        """Return whether its thread may submit work."""
        return self.phase == IN and not self.is_restoring

    @property
    def has_open_work(self) -> bool:
        """Return whether its work in this turn has begun, and has not finished."""
        return self.phase in (IN, CLOSING) and not self.is_restoring

    def __post_init__(self) -> None:
        self.id = self.spec.id
        self.cell_started = ev.CellStarted(self.id, "cell")
        self.cell_ended = ev.CellEnded(self.id, "cell")


class EventQueue:
    """The appointments. A new one of the same client and kind replaces the old."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handled_timers = 0  # appointments kept
        self._heap: list[tuple[float, int, int, SimClient]] = []
        self._sequence = 0
        self._actions: list[Callable[[SimClient], None]] = []

    def schedule(self, time: float, kind: int, client: SimClient) -> None:
        self._sequence = made = self._sequence + 1
        client.timers[kind] = made
        heapq.heappush(self._heap, (time, made, kind, client))
