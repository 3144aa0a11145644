"""State of simulated devices and clients, and the compiled agent rule's state and inputs for each process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..agent.rule import ffi
from ..core.interface import events as ev
from ..core.interface.commands import Permit
from ..wire.page import CLOSING, IN, OUT
from .workloads.workload import Cell, Participant

# Kinds of timers: a client has at most one of each.
WORK, GATE, IDLE, EVICT, RESTORE, LIFECYCLE, SAMPLE, MOVE, STEP = range(9)
NO_TIME_NS = (1 << 64) - 1  # value of the rule's `wake_at` and `boundary_from` for no time at all
# Activities of a client's program.
INACTIVE, THINKING, ON_CPU, ON_GPU = range(4)


class AgentRuleState:
    """State and inputs of the compiled agent rule for a process; the input `bell` is always set."""

    def __init__(self, devices: int = 1) -> None:
        self.state: Any = ffi.new("struct agent *")
        self.inputs: Any = ffi.new("struct agent_inputs *")
        self.permit: Any = self.inputs.permit
        self.inputs.own_devices, self.inputs.bell = (1 << devices) - 1, 1


@dataclass(eq=False, slots=True)
class SimDevice:
    """Memory and link of a device; sizes in bytes, times in virtual seconds.

    `restoring_bytes` and `evicting_bytes` are on their way over the link.
    The directions of the link are busy until `restore_link_free_at` and `evict_link_free_at`.
    """

    uuid: str
    index: int
    memory: int
    link: float
    resident_bytes: int = 0
    restoring_bytes: int = 0
    evicting_bytes: int = 0
    plain_bytes: int = 0  # the part of `resident_bytes` of memory mode "plain"
    restore_link_free_at: float = 0.0
    evict_link_free_at: float = 0.0
    working_clients: dict[int, SimClient] = field(default_factory=dict)
    clients: dict[int, SimClient] = field(default_factory=dict)  # clients that may have memory on the device
    last_client_index: int = -1  # index of the client that had the last turn
    turn_number: int = 0  # number of the present turn; 0 without one
    clients_in_turn: dict[int, SimClient] = field(default_factory=dict)
    busy_seconds: float = 0.0  # time with at least one working client
    busy_since: float = 0.0
    has_failed: bool = False


@dataclass(eq=False, slots=True)
class SimClient:
    """Program and process of a client, with counters; a negative time is unset."""

    spec: Participant
    index: int
    id: str = ""
    process_number: int = 0  # 0 before the first work on a device
    devices: tuple[SimDevice, ...] = ()
    timers: list[int] = field(default_factory=lambda: [-1] * 9)
    lifecycle: Iterator[tuple[float, str]] = field(default_factory=lambda: iter(()))
    next_lifecycle_event: str = ""
    # program
    activity: int = INACTIVE
    is_refused: bool = False  # the scheduler has not admitted the client
    is_restarting: bool = False  # the kernel has ended, and a new one is about to begin
    cells: Iterator[Cell] = field(default_factory=lambda: iter(()))
    phases: Iterator[float] = field(default_factory=lambda: iter(()))
    is_next_phase_on_gpu: bool = False
    remaining_gpu_seconds: float = 0.0  # of the present phase
    accounted_until: float = -1.0  # time of `remaining_gpu_seconds`, while the client works on the device
    rate: float = 1.0  # fraction of its speed without other clients
    max_rate: float = 1.0  # bound of `rate` by the launch budget
    thread_part: float = 1.0  # part of the device's threads that the process may use
    waiting_since: float = -1.0
    cell_started_at: float = -1.0
    cell_names: tuple[str, ...] = ()
    cell_wait: float = 0.0
    cell_gpu: float = 0.0
    cell_cpu: float = 0.0
    cell_ends_at_gpu: float = 0.0  # `gpu_seconds` at the end of the cell; infinite for an endless cell
    gpu_seconds: float = 0.0  # of all cells
    busy_seconds: float = 0.0  # time of work on the device, at any rate
    wait_seconds: float = 0.0
    # process
    agent: AgentRuleState = field(default_factory=AgentRuleState)
    phase: int = OUT
    permit: Permit | None = None
    turn_number: int = 0  # number of the present turn; 0 outside of a turn
    is_restoring: bool = False  # in a turn, while its memory is restored
    is_waiting_at_gate: bool = False
    is_quiet: bool = False  # the agent rule has found no work while another client waits
    is_idle: bool = False  # for so long that the scheduler got the event
    idle_since: float = 0.0
    turn_entered_at: float = -1.0
    moving_to: SimDevice | None = None  # the process enters no turn but that of its move
    hibernated: int = 0  # bytes that have left its device with the process; 0: the process is not hibernated
    boundary_from_ns: int = NO_TIME_NS  # from then on the turn ends at the end of a training step
    # memory
    allocated: int = 0
    released: int = 0  # bytes of its cache that its framework has freed and allocates again in the next cell
    unmade: int = 0  # part of `allocated` without contents, for which no device has memory yet
    resident_on: dict[SimDevice, int] = field(default_factory=dict)
    resident_targets: dict[SimDevice, int] = field(default_factory=dict)  # a device without an entry keeps all memory
    turn_limit: int | None = None  # bytes on its device in its turn; None: all bytes
    prefetch_devices: dict[SimDevice, None] = field(default_factory=dict)  # their memory may come back ahead of a turn
    evicting: dict[SimDevice, int] = field(default_factory=dict)  # bytes on their way off each device
    eviction_start: float = 0.0
    eviction_end: float = 0.0
    restoring: dict[SimDevice, int] = field(default_factory=dict)  # bytes on their way to each device
    restore_start: float = 0.0
    restore_end: float = 0.0
    # events that never change, made once
    gate_wait_started: ev.GateWaitStarted = field(default_factory=lambda: ev.GateWaitStarted(0))

    @property
    def resident(self) -> int:
        """Bytes of its memory that are on the devices."""
        return sum(self.resident_on.values())

    def device(self, uuid: str) -> SimDevice | None:
        """Return one of its devices; None: the client has moved away from that device."""
        return next((device for device in self.devices if device.uuid == uuid), None)

    def surplus_on(self, device: SimDevice) -> int:
        """Return the bytes that must leave the device, by its turn limit or its resident target there."""
        here = self.resident_on.get(device, 0)
        target = self.turn_limit if self.phase == IN else self.resident_targets.get(device)
        if self.is_in_turn_of_move:
            target = 0
        return 0 if target is None or self.spec.plain else max(0, here - target)

    @property
    def has_surplus(self) -> bool:
        return any(self.surplus_on(device) for device in self.devices)

    @property
    def is_in_turn_of_move(self) -> bool:
        return self.moving_to is not None and self.index in self.moving_to.clients_in_turn

    @property
    def is_gate_open(self) -> bool:
        """True if the client's thread may submit work."""
        return self.phase == IN and not self.is_restoring

    @property
    def has_open_work(self) -> bool:
        """True if the work of this turn has begun and has not finished."""
        return self.phase in (IN, CLOSING) and not self.is_restoring

    def __post_init__(self) -> None:
        self.id = self.spec.id
