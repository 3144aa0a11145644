"""The state that the scheduler keeps. The scheduler alone changes it; everybody else may read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .demand import Demand
from .quota import Quota
from .switching import Switching
from .usage import Usage

if TYPE_CHECKING:
    from .allowance import Allowance
    from .commands import Permit
    from .leavers import Leavers
    from .line import Line

IDLE, WAITING, RUNNING, DRAINING, OVERRUN = "idle", "waiting", "running", "draining", "overrun"
SUSPENDED = "suspended"


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU; `memory` in bytes is what the scheduler takes it to have."""

    uuid: str
    name: str = ""
    memory: int = 0
    simulated: bool = False
    hearsay: bool = False  # only a user's process says that it is there: it is that process's, and offered to nobody


@dataclass(frozen=True)
class Held:
    """Bytes of device memory: allocated, of those on the device now, and of those what can't leave it."""

    allocated: int = 0
    resident: int = 0
    pinned: int = 0

    @property
    def movable(self) -> int:
        """Bytes on the device that can leave it."""
        return self.resident - self.pinned

    @property
    def away(self) -> int:
        return self.allocated - self.resident


@dataclass(frozen=True)
class Turn:
    """A turn that a process says to be in when it joins: the number, and whether its gate is open."""

    number: int
    open: bool


@dataclass(eq=False)
class Process:
    number: int
    client: Client
    devices: tuple[str, ...]
    wants: bool = False  # a thread of it waits at the gate
    wants_since: float = float("-inf")
    turn: int = 0  # the number of the turn that it is in; 0: it is in none
    evicting: bool = False  # its work has finished and its memory leaves; it is in the turn still
    idle: bool = False  # in the turn, without work
    left: int = 0  # the epoch of the permit under which it left a turn last


@dataclass(eq=False)
class Grant:
    """A turn of `client` on `devices`, from its first process's entry to its last one's leaving."""

    client: Client
    turn: int  # its number; grants that run together have the same one
    devices: tuple[str, ...]
    began: float
    earlier_work: float = 0.0  # seconds since then that are not part of the work at hand: see `begin_work`
    counted: dict[str, float] = field(default_factory=dict)  # by device: until when it is in the client's books
    parting: bool = False  # it ends because of those beside whom it runs
    lead: float = 0.0  # of that, spent on bringing memory back: the quantum counts from then on
    expected_lead: float = 0.0
    restored: bool = False  # so it said: before, `lead` is what is expected
    closing_since: float | None = None  # set from the withdrawal of its permit, or its own closing, on
    evicting_since: float | None = None  # its work has finished, and only memory leaves
    overrun_since: float | None = None  # it would not end, and others wait
    interrupted: bool = False  # its client's kernel has been asked to interrupt what it runs
    cells_ended: float | None = None  # since when its client has no open cell, if one ended during this grant

    @property
    def starts(self) -> float:
        """When its work begins."""
        return self.began + self.lead

    @property
    def processes(self) -> list[Process]:
        """The processes that are in the turn."""
        return [process for process in self.client.processes.values() if process.turn == self.turn]

    @property
    def idle(self) -> bool:
        """Whether all its processes said so."""
        return all(process.idle for process in self.processes)

    @property
    def draining(self) -> bool:
        return self.closing_since is not None

    @property
    def overrun(self) -> bool:
        return self.overrun_since is not None

    def closing_for(self, now: float) -> float:
        """Seconds."""
        return 0.0 if self.closing_since is None else now - self.closing_since

    def forget_closing(self) -> None:
        """It runs as if nothing had tried to end it."""
        self.closing_since = self.evicting_since = self.cells_ended = self.overrun_since = None


@dataclass(eq=False)
class Next:
    """A permit to begin a turn, or to take further devices into one, that has not been used yet."""

    turn: int
    devices: tuple[str, ...]
    since: float
    joins: bool = False  # the turn of others, beside whom it is to run
    probes: int = 0  # how often the edge has been asked why it is not used


@dataclass(eq=False)
class Client:
    id: str
    tenant: str
    label: str
    quota: Quota
    gpus: int
    order: int  # of registration
    devices: tuple[str, ...] = ()
    books: tuple[Device, ...] = ()  # the same
    processes: dict[int, Process] = field(default_factory=dict)
    cells: set[str] = field(default_factory=set)
    cells_since: float = float("-inf")  # since when there has been an open one
    permit: Permit | None = None  # what the pages of its processes say
    next: Next | None = None
    grant: Grant | None = None
    waiting_since: float | None = None
    ticket: int = 0  # of its present place in the queue
    gpu_seconds: float = 0.0
    held_seconds: dict[str, float] = field(default_factory=dict)  # by device, present and past ones
    wait_seconds: float = 0.0
    waits: int = 0
    quanta: int = 0
    switch_seconds: float = 0.0  # of its turns: from their closing to their end, and until their memory was back
    held: Held = Held()
    part: Held = Held()  # of `held`, what counts on each of its devices
    short: int = 0  # bytes that it asked for and that its device has no room for
    last_ran: float = float("-inf")  # the end of its last turn
    mean_turn: float | None = None  # exponentially weighted, for expected waits
    restores: bool = True  # what is not on the device comes back before its turn's work, as far as has been seen
    peaks: tuple[int, int] = (0, 0)  # bytes that it had at most in its last turn, and since
    switching: Switching = field(default_factory=Switching)
    demand: Demand = field(default_factory=Demand)
    usage: Usage = field(default_factory=Usage)
    allowance: Allowance | None = None  # if it may not run all the time
    pace: tuple[float, float] = (1.0, 1.0)  # quantum and idle release that its processes know
    suspended: bool = False
    suspended_by_policy: bool = False  # for being idle: its next cell or GPU call resumes it
    evicted: bool = False  # its memory stays off its devices until its next turn
    evicted_by_policy: bool = False  # for being idle
    idle_since: float | None = None  # None: it is in use, or a person has suspended it
    gives_way: bool = False  # a guest on devices that their owner has claimed
    hold_until: float | None = None  # keeps the devices until then, working or not
    holding_since: float = float("-inf")  # when it began to hold, however often it has said so again
    counted_share: float | None = None  # among the rivals of its devices; None: it is not one now

    @property
    def rank(self) -> int:
        """Of its service class: 0 before 1."""
        return 0 if self.quota.service == "online" and not self.gives_way else 1

    @property
    def ready_at(self) -> float:
        """When it may run, as far as its limit goes."""
        return self.allowance.ready_at() if self.allowance else float("-inf")

    @property
    def phase(self) -> str:
        if self.suspended and (self.grant is None or not self.grant.overrun):
            return SUSPENDED
        if self.grant is None:
            return IDLE if self.waiting_since is None else WAITING
        if self.grant.overrun:
            return OVERRUN
        return DRAINING if self.grant.draining else RUNNING

    @property
    def wants(self) -> bool:
        return any(process.wants for process in self.processes.values())

    @property
    def suspended_by_person(self) -> bool:
        """Until a person resumes it."""
        return self.suspended and not self.suspended_by_policy

    @property
    def in_use(self) -> bool:
        """Whether it runs, wants to, or has an open cell."""
        return self.grant is not None or bool(self.cells) or self.wants

    @property
    def uncovered(self) -> bool:
        """Whether a thread waits in a process whose devices its turn does not cover."""
        covered = set(self.grant.devices) if self.grant else set()
        return any(process.wants and not set(process.devices) <= covered for process in self.processes.values())

    @property
    def stands_since(self) -> float | None:
        """Since when a thread stands at a gate that is closed because the client is suspended; None: none does."""
        if not self.suspended or self.grant is not None:
            return None
        return min((process.wants_since for process in self.processes.values() if process.wants), default=None)

    def held_for(self, now: float) -> float | None:
        """Seconds for which it still keeps the devices, or will once it has them; None: it does not hold."""
        return None if self.hold_until is None or self.hold_until <= now else self.hold_until - now

    def gpu_seconds_at(self, now: float) -> float:
        return self.gpu_seconds + (now - self.grant.began if self.grant else 0.0)

    def held_seconds_at(self, now: float) -> dict[str, float]:
        """For how long it had each device: what it has had at the same time counts on each."""
        seconds = dict(self.held_seconds)
        for uuid, since in self.grant.counted.items() if self.grant else ():
            seconds[uuid] = seconds.get(uuid, 0.0) + now - since
        return seconds

    def wait_seconds_at(self, now: float) -> float:
        return self.wait_seconds + (now - self.waiting_since if self.waiting_since is not None else 0.0)


@dataclass
class Rivals:
    """Clients that want a device now, waiting or running: their number, in all and by tenant, and their shares."""

    count: int = 0
    shares: float = 0.0
    tenants: dict[str, int] = field(default_factory=dict)

    def of_tenant(self, tenant: str) -> int:
        return self.tenants.get(tenant, 0)

    def add(self, tenant: str, share: float) -> None:
        self.count += 1
        self.shares += share
        self.tenants[tenant] = self.of_tenant(tenant) + 1

    def remove(self, tenant: str, share: float) -> None:
        self.count -= 1
        # Sums of fractions that come and go: without rivals it is 0, whatever rounding has left.
        self.shares = self.shares - share if self.count else 0.0
        self.tenants[tenant] -= 1
        if not self.tenants[tenant]:
            del self.tenants[tenant]


@dataclass(eq=False)
class Device:
    info: DeviceInfo
    line: Line
    grants: list[Grant] = field(default_factory=list)
    clients: dict[str, Client] = field(default_factory=dict)  # all that use it, waiting or not
    rivals: Rivals = field(default_factory=Rivals)
    allocated: int = 0  # bytes of all clients
    resident: int = 0  # of these, on the device
    pinned: int = 0  # of these, what can't leave it
    ahead: Client | None = None  # the waiting client whose memory comes back ahead of its turn
    full_at: int | None = None  # bytes that its clients had on it when a running one found it full; None: not known
    full_until: float = 0.0  # when that is forgotten
    leavers: Leavers = field(init=False)
    bounded: dict[str, Client] = field(default_factory=dict)  # whose memory leaves though there is room for it
    changes: int = 0  # of what clients have there, or may have
    next: Client | None = None  # has a permit for it, and has not begun
    free_since: float = float("-inf")  # when the last turn there ended
    taken_since: float | None = (
        None  # since when a client that this coordinator does not know has been found to have it
    )
    wanted_since: float | None = None  # since when a client that this coordinator does not know waits for it
    left_until: float | None = None  # until then no client here takes it, so that such a client can

    @property
    def capacity(self) -> int:
        """Bytes that clients can have on the device at the same time, as far as is known."""
        return self.info.memory if self.full_at is None else min(self.info.memory, self.full_at)

    @property
    def is_short(self) -> bool:
        """Whether its clients have more memory than it has, or who runs asked for some that it has no room for."""
        return self.allocated > self.info.memory or any(grant.client.short for grant in self.grants)
