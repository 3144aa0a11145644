"""State of the scheduler: processes, grants, pending permits, clients, contenders and devices.

Only the core changes the state; all other code may read it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from ..base.device_info import DeviceInfo
from ..base.errors import IllegalEvent, UnknownClient
from ..base.memory_use import NO_MEMORY, MemoryUse
from ..base.quota import Quota
from ..measure.cell_runs import CellRun, CellRuns, EndedRun
from ..measure.estimates import DecayingUsage, DemandEstimate, SwitchCostEstimate
from ..measure.takeover_budget import TakeoverBudget

if TYPE_CHECKING:
    from ..interface.commands import Permit
    from ..interface.settings import Settings
    from ..measure.time_limit import TimeLimitBucket

_RESERVED_PART, _RESERVED_PART_FOR_CONTEXTS = 16, 4  # of a device that a client moves to
_CACHE_SHORTAGE_SECONDS = 60.0  # for which caches are released after a memory shortage

IDLE, WAITING, RUNNING, DRAINING, OVERRUN = "idle", "waiting", "running", "draining", "overrun"
SUSPENDED = "suspended"


def bytes_to_return(hibernated: int, memory: int) -> int:
    """Return the free bytes that a process needs to return from hibernation to a device of `memory` bytes."""
    return hibernated + memory // _RESERVED_PART


@dataclass(eq=False)
class Process:
    number: int
    client: Client
    devices: tuple[str, ...]
    is_waiting_at_gate: bool = False  # a thread of the process waits at the gate
    waiting_at_gate_since: float = float("-inf")
    turn: int = 0  # the number of the turn that the process is in; 0: none
    is_evicting: bool = False  # the work has finished and the memory leaves; the process is still in the turn
    is_idle: bool = False  # in the turn, without work
    left_epoch: int = 0  # the epoch under which the process last left a turn
    hibernated: int = 0  # bytes that have left the device with the process; 0: the process is not hibernated


@dataclass(eq=False)
class Grant:
    """A turn of `client` on `devices`, from the first process that enters to the last process that leaves."""

    client: Client
    turn: int  # the turn number, which colocated grants have in common
    devices: tuple[str, ...]
    granted_at: float
    follows_other_client: bool = True  # on one of its devices another client had the last turn, or none had one
    earlier_work: float = 0.0  # seconds since `granted_at` that do not count for the work at hand: see `start_work`
    accounted_until: dict[str, float] = field(default_factory=dict)  # by device: the time up to which use is counted
    is_separating: bool = False  # the turn ends because of the clients that are colocated with its client
    restore_seconds: float = 0.0  # seconds since `granted_at` for restoring memory: the quantum begins after them
    max_restore_seconds: float = 0.0  # the allowance for the restore of the memory that is evicted at the beginning
    has_restored: bool = False  # reported by a process; until then, `restore_seconds` is the allowance
    is_restoring: bool = False  # evicted memory has come back since the begin
    closing_since: float | None = None  # when its permit was withdrawn, or when it began to close by itself
    evicting_since: float | None = None  # when its work had finished, so that only memory leaves
    overrun_since: float | None = None  # when it became an overrun
    is_interrupted: bool = False  # the client's kernel has got a request to interrupt its cell
    cells_ended_at: float | None = None  # when the last open cell ended, if a cell ended during this grant
    return_wait: float | None = None  # seconds before it, to charge to the budget for offline turns; None: charged
    is_return: bool = False  # of an online client, after offline turns on its devices
    paused_at: float | None = None  # when its processes reported that they are idle, if no other client waited then
    is_for_idle_move: bool = False  # the idle policy began a move that has ended in this turn

    @property
    def work_starts_at(self) -> float:
        """Time at which its work begins."""
        return self.granted_at + self.restore_seconds

    @property
    def processes(self) -> list[Process]:
        """Processes that are in the turn."""
        return [process for process in self.client.processes.values() if process.turn == self.turn]

    @property
    def is_idle(self) -> bool:
        """True if all its processes have reported that they are idle."""
        return all(process.is_idle for process in self.processes)

    @property
    def is_draining(self) -> bool:
        return self.closing_since is not None

    @property
    def is_overrun(self) -> bool:
        return self.overrun_since is not None

    def closing_seconds(self, now: float) -> float:
        """Return the seconds since the closing began; 0: it has not begun."""
        return 0.0 if self.closing_since is None else now - self.closing_since

    def reset_closing(self) -> None:
        """Treat the turn as if its closing had never begun."""
        self.closing_since = self.evicting_since = self.cells_ended_at = self.overrun_since = self.paused_at = None
        self.is_for_idle_move = False


@dataclass(eq=False)
class PendingPermit:
    """A permit to begin a turn, or to take further devices into one, that no process has used yet."""

    turn: int
    devices: tuple[str, ...]
    since: float
    joins_turn: bool = False  # the client is to enter the turn of other clients, as their colocated client
    checks: int = 0  # the number of requests to the edge to find out why the permit is unused


@dataclass(eq=False)
class Client:
    id: str
    user: str
    label: str
    quota: Quota
    gpus: int
    order: int  # of registration
    devices: tuple[str, ...] = ()
    device_bindings: tuple[Device, ...] = ()  # the same devices as objects
    processes: dict[int, Process] = field(default_factory=dict)
    cells: set[str] = field(default_factory=set)
    cells_since: float = float("-inf")  # when the first of the open cells began
    cell_run: CellRun | None = None  # the run of its only open cell; None: no cell, or several cells, are open
    ended_run: EndedRun | None = None  # the run that ended last; None: it was not alone
    cell_runs: CellRuns = field(default_factory=CellRuns)
    permit: Permit | None = None  # as written to the pages of its processes
    permitted_devices: dict[int, tuple[str, ...]] = field(default_factory=dict)  # of its last permits, by turn
    pending_permit: PendingPermit | None = None
    grant: Grant | None = None
    waiting_since: float | None = None
    queue_sequence: int = 0  # number of its present entry in the queue
    gpu_seconds: float = 0.0
    granted_seconds: dict[str, float] = field(default_factory=dict)  # by device, present and past devices
    wait_seconds: float = 0.0
    waits: int = 0
    turn_count: int = 0
    switch_seconds: float = 0.0  # for closing its turns and for restoring its memory
    memory_use: MemoryUse = NO_MEMORY
    memory_by_device: dict[str, MemoryUse] = field(default_factory=dict)  # the part of `memory_use` on each device
    last_turn_ended_at: float = float("-inf")
    bound_at: float = float("-inf")  # when its devices were chosen for a process that has not joined yet
    mean_turn: float | None = None  # seconds, exponentially weighted, for expected waits
    restores_memory: bool = True  # as observed: its evicted memory comes back before the work of its turn
    moving_to: str = ""  # the device that the client moves to, hibernates on or returns to; it is one of `devices`
    is_hibernating: bool = False  # the client leaves `moving_to`, which is its own device
    is_returning: bool = False  # the hibernated client returns to `moving_to`, which is its own device
    may_hibernate_at: float = float("-inf")  # when the idle policy tries a hibernation again
    start_move_at: float = float("-inf")  # when the start of its move, which found no room, is tried again
    may_return_at: float = float("-inf")  # when a hibernated client may take a turn again
    has_started_move: bool = False  # the driver moves the client's process
    moves_while_idle: bool = False  # the idle policy began the move, which ends if a cell begins before its start
    moves_alone: bool = False  # the coordinator began the move, which needs a turn on `moving_to` only
    may_move_at: float = float("-inf")  # when the coordinator looks for another device by itself again
    is_placed: bool = False  # placement chose its devices at the first CUDA call, and not its user
    move_since: float = float("-inf")  # when the move was requested, or since when the process is away after its start
    peak_bytes: tuple[int, int] = (0, 0)  # the most bytes that it had in its last turn, and since then
    switch_cost: SwitchCostEstimate = field(default_factory=SwitchCostEstimate)
    demand: DemandEstimate = field(default_factory=DemandEstimate)
    usage: DecayingUsage = field(default_factory=DecayingUsage)
    time_limit: TimeLimitBucket | None = None  # None: it may run all the time
    takeover_budget: TakeoverBudget = field(default_factory=TakeoverBudget)
    takeover_at: float = float("-inf")  # of an offline client: when online clients can bear the loss of its turn
    can_spill: bool = False  # its memory may stay off the device in its turn, because all of it is unified
    turn_limit: int | None = None  # bytes on its device in its turn, with context memory; None: all bytes
    turn_bound: int | None = None  # the last SetTurnLimit; see `turn_bound_on`
    leave_by: float | None = None  # when memory above its turn limit must have left; None: it has none
    unspillable_bytes: int = 0  # its allocated bytes when it did not keep a turn limit; 0: it has kept all
    published_timing: tuple[float, float] = (1.0, 1.0)  # quantum and idle release on the pages of its processes
    suspended: bool = False
    suspended_by_policy: bool = False  # for being idle: its next cell or GPU call resumes it
    evicted: bool = False  # its memory stays off its devices until its next turn
    evicted_by_policy: bool = False  # for being idle
    is_short_of_room: bool = False  # in the queue, without a turn while memory that cannot leave takes its room
    idle_since: float | None = None  # None: it is in use, or a user has suspended it
    is_preemptible_guest: bool = False  # a guest on devices that their owner has claimed
    hold_until: float | None = None  # the end of the hold
    holding_since: float = float("-inf")  # when the hold began; a renewed hold does not change it
    contending_shares: tuple[float, ...] | None = None  # its share on each of its devices; None: it does not contend

    @property
    def turn_bindings(self) -> tuple[Device, ...]:
        """The devices that its next turn needs: all of its devices, or only the one that it moves to."""
        if self.moves_alone:
            return tuple(device for device in self.device_bindings if device.info.uuid == self.moving_to)
        return self.device_bindings

    @property
    def turn_devices(self) -> tuple[str, ...]:
        return (self.moving_to,) if self.moves_alone else self.devices

    @property
    def unmet_bytes(self) -> int:
        """Bytes that it has asked for and that a device has no room for."""
        return self.memory_use.unmet

    def memory_on(self, device: Device) -> MemoryUse:
        """Return the part of its memory that is on the device, or belongs there."""
        return self.memory_by_device.get(device.info.uuid, NO_MEMORY)

    def missing_on(self, device: Device) -> int:
        """Return the bytes that need room on the device before the client can work there."""
        return self.memory_in_turn(device).missing_bytes

    def quota_in_turn(self, device: Device) -> int | None:
        """Return the bytes that its quota `resident` lets it have on the device in its turn; None: all bytes.

        Only memory of mode `unified` may stay off the device in a turn. Context memory counts, as in a turn limit.
        """
        if self.quota.resident is None or not self.can_spill or len(self.devices) != 1:
            return None
        use = self.memory_on(device)
        return max(self.quota.resident + use.context, use.unmovable)

    def turn_bound_on(self, device: Device) -> int | None:
        """Return the bytes that it may have on the device in its turn, with context memory; None: all bytes."""
        bounds = (self.turn_limit, self.quota_in_turn(device))
        return min((bound for bound in bounds if bound is not None), default=None)

    def memory_in_turn(self, device: Device) -> MemoryUse:
        """Return its memory on the device, without the bytes that may not be there in its turn."""
        use = self.memory_on(device)
        bound = self.turn_bound_on(device)
        if bound is None:
            return use
        allocated = min(use.allocated, bound)
        if self.grant:  # memory above the limit is leaving
            return replace(use, allocated=allocated, resident=min(use.resident, allocated))
        return replace(use, allocated=max(allocated, use.resident))

    def arriving_on(self, device: Device) -> int:
        """Return the bytes that must be free on the device when the client moves or returns there; 0: it does not.

        A part of the device stays free besides, because a restore without room could never be repeated. Other clients'
        new contexts need no turn, and contexts of unknown size are in no figure of the coordinator.
        """
        if self.moving_to != device.info.uuid or self.is_hibernating:
            return 0
        if self.is_returning:
            return bytes_to_return(self.hibernated, device.info.memory)
        reserve = device.info.memory // (_RESERVED_PART if self.memory_use.context else _RESERVED_PART_FOR_CONTEXTS)
        return reserve + sum(use.unmovable for uuid, use in self.memory_by_device.items() if uuid != self.moving_to)

    def part_on(self, device: Device, size: int) -> int:
        """Return the part of `size` bytes that the device gets: as much as of its present memory, or an equal part."""
        allocated = sum(use.allocated for use in self.memory_by_device.values())
        if not allocated:
            return size // max(1, len(self.devices))
        return size * self.memory_on(device).allocated // allocated

    @property
    def service_rank(self) -> int:
        """Rank of its class of service: 0 comes before 1."""
        return 0 if self.quota.service == "online" and not self.is_preemptible_guest else 1

    @property
    def cannot_return(self) -> bool:
        """Return whether the driver has refused to restore its hibernated process, and so refuses it for ever."""
        return bool(self.hibernated) and self.may_return_at == float("inf")

    @property
    def ready_at(self) -> float:
        """Time from which its limit, and the losses of online clients, let it run."""
        limit = max(self.may_return_at, self.time_limit.ready_at() if self.time_limit else float("-inf"))
        return max(limit, self.takeover_at) if self.service_rank else limit

    @property
    def phase(self) -> str:
        if self.suspended and (self.grant is None or not self.grant.is_overrun):
            return SUSPENDED
        if self.grant is None:
            return IDLE if self.waiting_since is None else WAITING
        if self.grant.is_overrun:
            return OVERRUN
        return DRAINING if self.grant.is_draining else RUNNING

    @property
    def is_moving(self) -> bool:
        """True if the client moves to another device than its own."""
        return bool(self.moving_to) and not self.is_hibernating and not self.is_returning

    @property
    def moves_by_itself(self) -> bool:
        """True if no user has asked for its move or hibernation."""
        return self.moves_while_idle or self.moves_alone

    @property
    def hibernated(self) -> int:
        """Bytes that have left its device with its hibernated process; 0: it is not hibernated."""
        return sum(process.hibernated for process in self.processes.values())

    @property
    def is_waiting_at_gate(self) -> bool:
        return any(process.is_waiting_at_gate for process in self.processes.values())

    @property
    def suspended_by_user(self) -> bool:
        """True if the client is suspended and no policy has suspended it."""
        return self.suspended and not self.suspended_by_policy

    @property
    def is_in_use(self) -> bool:
        """True if the client has an open cell, or runs or waits for another reason than a move of the idle policy."""
        is_running = self.grant is not None and not self.grant.is_for_idle_move
        return bool(self.cells) or (not self.moves_while_idle and (is_running or self.is_waiting_at_gate))

    @property
    def expected_bytes(self) -> int:
        """The most bytes that it is expected to have until the end of its open cell; 0: the cell never ran."""
        expected = self.cell_run.expected if self.cell_run else None
        return expected.peak_bytes + self.memory_use.context if expected else 0

    @property
    def is_at_work(self) -> bool:
        """True if the client waits for its devices, or has them and a cell of it is open.

        The turn of an idle notebook may last, because it ends only when another client waits. A turn of a program
        without cells counts as work.
        """
        has_ended_cells = self.grant is not None and self.grant.cells_ended_at is not None
        return self.waiting_since is not None or (self.grant is not None and (bool(self.cells) or not has_ended_cells))

    @property
    def needs_more_devices(self) -> bool:
        """True if a thread waits in a process whose devices the client's turn does not cover."""
        if self.moves_alone and self.grant:
            return False
        covered = set(self.grant.devices) if self.grant else set()
        return any(
            process.is_waiting_at_gate and not set(process.devices) <= covered for process in self.processes.values()
        )

    @property
    def blocked_since(self) -> float | None:
        """Time since which a thread waits at a gate that a suspension closes; None: no such thread waits."""
        if not self.suspended or self.grant is not None:
            return None
        return min(
            (process.waiting_at_gate_since for process in self.processes.values() if process.is_waiting_at_gate),
            default=None,
        )

    def hold_seconds_left(self, now: float) -> float | None:
        """Return the seconds until the end of the hold; None: the client does not hold."""
        return None if self.hold_until is None or self.hold_until <= now else self.hold_until - now

    def gpu_seconds_at(self, now: float) -> float:
        return self.gpu_seconds + (now - self.grant.granted_at if self.grant else 0.0)

    def granted_seconds_at(self, now: float) -> dict[str, float]:
        """Return the seconds that it has had each device. Time with several devices counts on each of them."""
        seconds = dict(self.granted_seconds)
        for uuid, since in self.grant.accounted_until.items() if self.grant else ():
            seconds[uuid] = seconds.get(uuid, 0.0) + now - since
        return seconds

    def wait_seconds_at(self, now: float) -> float:
        return self.wait_seconds + (now - self.waiting_since if self.waiting_since is not None else 0.0)


@dataclass
class Contention:
    """Contenders of a device, which wait for it or run on it: their number, in all and by user, and their shares."""

    count: int = 0
    shares: float = 0.0
    user_counts: dict[str, int] = field(default_factory=dict)

    def count_of_user(self, user: str) -> int:
        return self.user_counts.get(user, 0)

    def add(self, user: str, share: float) -> None:
        self.count += 1
        self.shares += share
        self.user_counts[user] = self.count_of_user(user) + 1

    def remove(self, user: str, share: float) -> None:
        self.count -= 1
        # Sums of fractions have rounding errors; without contenders the sum is exactly 0.
        self.shares = self.shares - share if self.count else 0.0
        self.user_counts[user] -= 1
        if not self.user_counts[user]:
            del self.user_counts[user]


class ClientQueue(Protocol):
    """The clients that wait for one device, in the policy's order (`queueing.wait_queue`)."""

    def __len__(self) -> int: ...
    def __contains__(self, client: Client) -> bool: ...
    @property
    def clients(self) -> Iterable[Client]: ...
    @property
    def offline_clients(self) -> Iterable[Client]: ...
    def has_others(self, client: Client) -> bool: ...
    def add(self, client: Client, now: float) -> None: ...
    def remove(self, client: Client) -> None: ...
    def update_eligibility(self, now: float) -> None: ...
    def next_ready_at(self) -> float | None: ...
    def head(self, now: float) -> Client | None: ...
    def starvation_deadline(self, service_rank: int) -> float: ...
    def waiting_since(self, service_rank: int) -> float: ...
    def in_order(self, now: float) -> list[Client]: ...
    def predecessors(self, client: Client, now: float) -> list[Client]: ...


class EvictionCandidates(Protocol):
    """Clients in the order in which their memory leaves one device (`queueing.eviction_order`)."""

    def add_idle(self, client: Client) -> None: ...
    def add_waiting(self, client: Client, key: float) -> None: ...
    def remove_idle(self, client: Client) -> None: ...
    def idle_oldest_first(self) -> Generator[Client, None, None]: ...
    def waiting_last_first(self) -> Generator[Client, None, None]: ...


class TurnPolicy(Protocol):
    """The policy of one device (`queueing.policies`)."""

    def share(self, client: Client) -> float: ...
    def limit(self, client: Client) -> float: ...
    def key(self, client: Client) -> float: ...
    def quantum(self, client: Client) -> float: ...
    def turn_end(self, grant: Grant, head: Client, starvation_deadline: float) -> float: ...


@dataclass(eq=False)
class Device:
    info: DeviceInfo
    queue: ClientQueue = field(init=False)
    settings: Settings = field(init=False)  # those of the host, with the device's own in their place
    policy: TurnPolicy = field(init=False)  # the policy of `settings`
    grants: list[Grant] = field(default_factory=list)
    clients: dict[str, Client] = field(default_factory=dict)  # all clients that use it, waiting or not
    contention: Contention = field(default_factory=Contention)
    allocated: int = 0  # bytes of all clients
    resident: int = 0  # the part of `allocated` that is on the device
    unmovable: int = 0  # the part of `resident` that cannot leave the device
    unbacked: int = 0  # the part of `unmovable` that cannot leave for lack of host memory
    context: int = 0  # the part of `unmovable` that is context memory
    has_clients_short_of_room: bool = False  # such clients wait for the device
    prefetching_client: Client | None = None  # the waiting client whose memory comes back ahead of its turn
    measured_capacity: int | None = None  # bytes there when a running client found the device full; None: unknown
    measured_capacity_until: float = 0.0  # when `measured_capacity` expires
    eviction_candidates: EvictionCandidates = field(init=False)
    forced_evictions: dict[str, Client] = field(default_factory=dict)  # clients whose memory leaves in spite of room
    limited_clients: dict[str, Client] = field(default_factory=dict)  # those with a turn limit
    memory_short_at: float = float("-inf")  # when a report of memory last showed a memory shortage
    memory_version: int = 0  # changes when the memory there, or what clients may have there, changes
    next_client: Client | None = None  # the client that has an unused permit for the device
    free_since: float = float("-inf")  # when the last turn there ended
    last_client: Client | None = None  # the client of that turn
    offline_until: float = float("-inf")  # when the last turn of an offline client there ended
    taken_by_other_since: float | None = None  # when a client unknown to this coordinator was found to have it
    lock_contended_since: float | None = None  # when a client unknown to this coordinator began to wait for it
    yielded_until: float | None = None  # until then no client here takes it, so that such a client can

    @property
    def capacity(self) -> int:
        """Bytes that clients can have on the device at the same time, as far as is known."""
        return self.info.memory if self.measured_capacity is None else min(self.info.memory, self.measured_capacity)

    @property
    def has_memory_shortage(self) -> bool:
        """True if its clients have more memory than the device, or if a running client lacks memory."""
        arriving = sum(grant.client.arriving_on(self) for grant in self.grants)
        return self.allocated + arriving > self.info.memory or any(
            grant.client.memory_on(self).unmet for grant in self.grants
        )

    def needs_room_of_caches(self, now: float) -> bool:
        """Return whether memory is short, or was short in the last minute.

        A client that releases its cache ends the shortage until its next cell, which allocates the cache again.
        """
        return self.has_memory_shortage or now < self.memory_short_at + _CACHE_SHORTAGE_SECONDS


class EntityRegistry:
    """Clients, devices and processes of the scheduler, in which event handlers look names up."""

    def __init__(self) -> None:
        self.clients: dict[str, Client] = {}
        self.devices: dict[str, Device] = {}
        self.processes: dict[int, Process] = {}

    def client(self, identity: str) -> Client:
        try:
            return self.clients[identity]
        except KeyError:
            raise UnknownClient(f"there is no client {identity!r}") from None

    def process(self, number: int) -> Process:
        try:
            return self.processes[number]
        except KeyError:
            raise IllegalEvent(f"no process {number} has joined") from None
