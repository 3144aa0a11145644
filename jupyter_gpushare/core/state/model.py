"""The state that the scheduler keeps. The scheduler alone changes it; everybody else may read it."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..base.device_info import DeviceInfo
from ..base.quota import Quota
from ..measure.decaying_usage import DecayingUsage
from ..measure.demand_estimate import DemandEstimate
from ..measure.switch_cost import SwitchCostEstimate

if TYPE_CHECKING:
    from ..interface.commands import Permit
    from ..measure.time_limit import TimeLimitBucket

IDLE, WAITING, RUNNING, DRAINING, OVERRUN = "idle", "waiting", "running", "draining", "overrun"
SUSPENDED = "suspended"


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of device memory: allocated, of those on the device now, and of those what can't leave it."""

    allocated: int = 0
    resident: int = 0
    unmovable: int = 0

    @property
    def movable(self) -> int:
        """Bytes on the device that can leave it."""
        return self.resident - self.unmovable

    @property
    def evicted_bytes(self) -> int:
        return self.allocated - self.resident


@dataclass(eq=False)
class Process:
    number: int
    client: Client
    devices: tuple[str, ...]
    is_waiting_at_gate: bool = False  # a thread of it waits at the gate
    waiting_at_gate_since: float = float("-inf")
    turn: int = 0  # the number of the turn that it is in; 0: it is in none
    is_evicting: bool = False  # its work has finished and its memory leaves; it is in the turn still
    is_idle: bool = False  # in the turn, without work
    left_epoch: int = 0  # the epoch of the permit under which it left a turn last


@dataclass(eq=False)
class Grant:
    """A turn of `client` on `devices`, from its first process's entry to its last one's leaving."""

    client: Client
    turn: int  # its number; grants that run together have the same one
    devices: tuple[str, ...]
    granted_at: float
    earlier_work: float = 0.0  # seconds since then that are not part of the work at hand: see `start_work`
    accounted_until: dict[str, float] = field(default_factory=dict)  # by device: until when it is in the client's books
    is_separating: bool = False  # it ends because of those beside whom it runs
    restore_seconds: float = 0.0  # of that, spent on bringing memory back: the quantum counts from then on
    expected_restore_seconds: float = 0.0
    has_restored: bool = False  # so it said: before, `restore_seconds` is what is expected
    closing_since: float | None = None  # set from the withdrawal of its permit, or its own closing, on
    evicting_since: float | None = None  # its work has finished, and only memory leaves
    overrun_since: float | None = None  # it would not end, and others wait
    is_interrupted: bool = False  # its client's kernel has been asked to interrupt what it runs
    cells_ended_at: float | None = None  # since when its client has no open cell, if one ended during this grant

    @property
    def work_starts_at(self) -> float:
        """When its work begins."""
        return self.granted_at + self.restore_seconds

    @property
    def processes(self) -> list[Process]:
        """The processes that are in the turn."""
        return [process for process in self.client.processes.values() if process.turn == self.turn]

    @property
    def is_idle(self) -> bool:
        """Whether all its processes said so."""
        return all(process.is_idle for process in self.processes)

    @property
    def is_draining(self) -> bool:
        return self.closing_since is not None

    @property
    def is_overrun(self) -> bool:
        return self.overrun_since is not None

    def closing_seconds(self, now: float) -> float:
        """Seconds."""
        return 0.0 if self.closing_since is None else now - self.closing_since

    def reset_closing(self) -> None:
        """It runs as if nothing had tried to end it."""
        self.closing_since = self.evicting_since = self.cells_ended_at = self.overrun_since = None


@dataclass(eq=False)
class PendingPermit:
    """A permit to begin a turn, or to take further devices into one, that has not been used yet."""

    turn: int
    devices: tuple[str, ...]
    since: float
    joins_turn: bool = False  # the turn of others, beside whom it is to run
    checks: int = 0  # how often the edge has been asked why it is not used


@dataclass(eq=False)
class Client:
    id: str
    user: str
    label: str
    quota: Quota
    gpus: int
    order: int  # of registration
    devices: tuple[str, ...] = ()
    device_bindings: tuple[Device, ...] = ()  # the same
    processes: dict[int, Process] = field(default_factory=dict)
    cells: set[str] = field(default_factory=set)
    cells_since: float = float("-inf")  # since when there has been an open one
    permit: Permit | None = None  # what the pages of its processes say
    pending_permit: PendingPermit | None = None
    grant: Grant | None = None
    waiting_since: float | None = None
    queue_sequence: int = 0  # of its present place in the queue
    gpu_seconds: float = 0.0
    granted_seconds: dict[str, float] = field(default_factory=dict)  # by device, present and past ones
    wait_seconds: float = 0.0
    waits: int = 0
    turn_count: int = 0
    switch_seconds: float = 0.0  # of its turns: from their closing to their end, and until their memory was back
    memory_use: MemoryUse = MemoryUse()
    memory_per_device: MemoryUse = MemoryUse()  # of `memory_use`, what counts on each of its devices
    unmet_bytes: int = 0  # bytes that it asked for and that its device has no room for
    last_turn_ended_at: float = float("-inf")  # the end of its last turn
    mean_turn: float | None = None  # exponentially weighted, for expected waits
    restores_memory: bool = True  # what is not on the device comes back before its turn's work, as far as has been seen
    peak_bytes: tuple[int, int] = (0, 0)  # bytes that it had at most in its last turn, and since
    switch_cost: SwitchCostEstimate = field(default_factory=SwitchCostEstimate)
    demand: DemandEstimate = field(default_factory=DemandEstimate)
    usage: DecayingUsage = field(default_factory=DecayingUsage)
    time_limit: TimeLimitBucket | None = None  # if it may not run all the time
    published_timing: tuple[float, float] = (1.0, 1.0)  # quantum and idle release that its processes know
    suspended: bool = False
    suspended_by_policy: bool = False  # for being idle: its next cell or GPU call resumes it
    evicted: bool = False  # its memory stays off its devices until its next turn
    evicted_by_policy: bool = False  # for being idle
    idle_since: float | None = None  # None: it is in use, or a person has suspended it
    is_preemptible_guest: bool = False  # a guest on devices that their owner has claimed
    hold_until: float | None = None  # keeps the devices until then, working or not
    holding_since: float = float("-inf")  # when it began to hold, however often it has said so again
    contending_share: float | None = None  # among the rivals of its devices; None: it is not one now

    @property
    def service_rank(self) -> int:
        """Of its service class: 0 before 1."""
        return 0 if self.quota.service == "online" and not self.is_preemptible_guest else 1

    @property
    def ready_at(self) -> float:
        """When it may run, as far as its limit goes."""
        return self.time_limit.ready_at() if self.time_limit else float("-inf")

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
    def is_waiting_at_gate(self) -> bool:
        return any(process.is_waiting_at_gate for process in self.processes.values())

    @property
    def suspended_by_user(self) -> bool:
        """Until a person resumes it."""
        return self.suspended and not self.suspended_by_policy

    @property
    def is_in_use(self) -> bool:
        """Whether it runs, wants to, or has an open cell."""
        return self.grant is not None or bool(self.cells) or self.is_waiting_at_gate

    @property
    def needs_more_devices(self) -> bool:
        """Whether a thread waits in a process whose devices its turn does not cover."""
        covered = set(self.grant.devices) if self.grant else set()
        return any(
            process.is_waiting_at_gate and not set(process.devices) <= covered for process in self.processes.values()
        )

    @property
    def blocked_since(self) -> float | None:
        """Since when a thread stands at a gate that is closed because the client is suspended; None: none does."""
        if not self.suspended or self.grant is not None:
            return None
        return min(
            (process.waiting_at_gate_since for process in self.processes.values() if process.is_waiting_at_gate),
            default=None,
        )

    def hold_seconds_left(self, now: float) -> float | None:
        """Seconds for which it still keeps the devices, or will once it has them; None: it does not hold."""
        return None if self.hold_until is None or self.hold_until <= now else self.hold_until - now

    def gpu_seconds_at(self, now: float) -> float:
        return self.gpu_seconds + (now - self.grant.granted_at if self.grant else 0.0)

    def granted_seconds_at(self, now: float) -> dict[str, float]:
        """For how long it had each device: what it has had at the same time counts on each."""
        seconds = dict(self.granted_seconds)
        for uuid, since in self.grant.accounted_until.items() if self.grant else ():
            seconds[uuid] = seconds.get(uuid, 0.0) + now - since
        return seconds

    def wait_seconds_at(self, now: float) -> float:
        return self.wait_seconds + (now - self.waiting_since if self.waiting_since is not None else 0.0)


@dataclass
class Contention:
    """Clients that want a device now, waiting or running: their number, in all and by tenant, and their shares."""

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
        # Sums of fractions that come and go: without rivals it is 0, whatever rounding has left.
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
    """The clients whose memory leaves one device first (`queueing.eviction_order`)."""

    def add_idle(self, client: Client) -> None: ...
    def add_waiting(self, client: Client, key: float) -> None: ...
    def remove(self, client: Client) -> None: ...
    def idle_oldest_first(self) -> Generator[Client, None, None]: ...
    def waiting_last_first(self) -> Generator[Client, None, None]: ...


@dataclass(eq=False)
class Device:
    info: DeviceInfo
    queue: ClientQueue
    grants: list[Grant] = field(default_factory=list)
    clients: dict[str, Client] = field(default_factory=dict)  # all that use it, waiting or not
    contention: Contention = field(default_factory=Contention)
    allocated: int = 0  # bytes of all clients
    resident: int = 0  # of these, on the device
    unmovable: int = 0  # of these, what can't leave it
    prefetching_client: Client | None = None  # the waiting client whose memory comes back ahead of its turn
    measured_capacity: int | None = (
        None  # bytes that its clients had on it when a running one found it full; None: not known
    )
    measured_capacity_until: float = 0.0  # when that is forgotten
    eviction_candidates: EvictionCandidates = field(init=False)
    forced_evictions: dict[str, Client] = field(default_factory=dict)  # whose memory leaves though there is room for it
    memory_version: int = 0  # of what clients have there, or may have
    next_client: Client | None = None  # has a permit for it, and has not begun
    free_since: float = float("-inf")  # when the last turn there ended
    taken_by_other_since: float | None = (
        None  # since when a client that this coordinator does not know has been found to have it
    )
    lock_contended_since: float | None = None  # since when a client that this coordinator does not know waits for it
    yielded_until: float | None = None  # until then no client here takes it, so that such a client can

    @property
    def capacity(self) -> int:
        """Bytes that clients can have on the device at the same time, as far as is known."""
        return self.info.memory if self.measured_capacity is None else min(self.info.memory, self.measured_capacity)

    @property
    def has_memory_shortage(self) -> bool:
        """Whether its clients have more memory than it has, or who runs asked for some that it has no room for."""
        return self.allocated > self.info.memory or any(grant.client.unmet_bytes for grant in self.grants)
