"""What happens to the scheduler. Nouns; frozen; times are seconds on a clock that never jumps back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .model import DeviceInfo, Turn
from .placement import Request
from .quota import Quota
from .settings import Settings


@dataclass(frozen=True)
class ClientRegistered:
    """A client is announced, or one of its members brings it back. Known clients keep their quota and devices.

    `request` says more of the devices that it wants than `gpus` does; share, memory and class are the quota's. `group`
    names the one of the tenants in the settings that its owner belongs to. `running`: its program is there already.
    """

    client: str
    tenant: str = ""
    label: str = ""
    quota: Quota = field(default_factory=Quota)
    gpus: int = 1
    request: Request | None = None
    group: str = ""
    running: bool = False


@dataclass(frozen=True)
class ClientForgotten:
    """The client is over: its last member left and nobody will come back."""

    client: str


@dataclass(frozen=True)
class DeviceFound:
    """A device is known from NVML, the simulated driver or a process's report."""

    device: DeviceInfo


@dataclass(frozen=True)
class DeviceFailed:
    """The device misbehaves: new clients get others."""

    device: str
    reason: str


@dataclass(frozen=True)
class DeviceRecovered:
    """The device is to be used again."""

    device: str


@dataclass(frozen=True)
class ProcessJoined:
    """A process of a registered client initialised CUDA on `devices`.

    `turn`: the turn that the process is in, which outlived an earlier coordinator or began without one; None: in none.
    """

    client: str
    process: int
    devices: tuple[str, ...]
    turn: Turn | None = None


@dataclass(frozen=True)
class ProcessGone:
    """The process has ended, or lost its connection: it is under nobody's orders any more."""

    process: int


@dataclass(frozen=True)
class Wanted:
    """A thread of the process waits at the gate."""

    process: int


@dataclass(frozen=True)
class Unwanted:
    """The last waiting thread of the process gave up (it was interrupted)."""

    process: int


@dataclass(frozen=True)
class Began:
    """The process has entered the turn `turn`, at the time `at`."""

    process: int
    turn: int
    at: float


@dataclass(frozen=True)
class Closed:
    """The process, which is in the turn `turn`, has closed its gate at the time `at`."""

    process: int
    turn: int
    at: float


@dataclass(frozen=True)
class Ended:
    """The process has left the turn `turn`: its work has finished, and it holds no lock any more.

    `closed`: when its gate closed, if no Closed has said so.
    """

    process: int
    turn: int
    closed: float | None = None


@dataclass(frozen=True)
class NotTaken:
    """The client has not begun by its permit: one of its processes is stopped; else its processes try in vain, because
    a client that this coordinator does not know has a device."""

    client: str
    stopped: bool


@dataclass(frozen=True)
class Evicting:
    """The process's submitted work has finished, and its memory leaves the device; Ended follows."""

    process: int


@dataclass(frozen=True)
class Restored:
    """The process's memory is back on the device: only now its work begins."""

    process: int


@dataclass(frozen=True)
class MemoryHeld:
    """What the client's processes say of their device memory, in bytes: allocated, of those on the device, and of
    those what can't leave it. `short`: asked for and not got, because the device is full; 0: nothing any more.
    """

    client: str
    allocated: int
    resident: int
    pinned: int = 0
    short: int = 0


@dataclass(frozen=True)
class WentIdle:
    """The process, which is in a turn, submitted nothing and ran nothing for the idle-release time."""

    process: int


@dataclass(frozen=True)
class WentBusy:
    """The process works again in the turn in which it went idle."""

    process: int


@dataclass(frozen=True)
class CellStarted:
    client: str
    request: str


@dataclass(frozen=True)
class CellEnded:
    client: str
    request: str


@dataclass(frozen=True)
class TurnReleased:
    """The client's user gives up the rest of the turn."""

    client: str


@dataclass(frozen=True)
class TurnHeld:
    """The client's user keeps the devices for so many seconds from now, working or not; 0: no longer."""

    client: str
    seconds: float


@dataclass(frozen=True)
class Evicted:
    """The client's user gives up the turn and moves its memory off the devices, until its next turn."""

    client: str


@dataclass(frozen=True)
class Suspended:
    """The client gets no turns, and its memory leaves the devices, until Resumed.

    `by_policy`: for being idle, as an earlier coordinator decided; then its next cell or GPU call resumes it too, and
    this changes nothing if it is in use, or suspended already.
    """

    client: str
    by_policy: bool = False


@dataclass(frozen=True)
class Resumed:
    client: str


@dataclass(frozen=True)
class Progress:
    """What the client's processes have done since they began: launches, blocks of launches, seconds of GPU work.

    `at`: when they counted that; None: now.
    """

    client: str
    launches: int
    blocks: int
    gpu_seconds: float
    at: float | None = None


@dataclass(frozen=True)
class QuotaChanged:
    """`allocated` is what the client's processes hold at this moment, in bytes."""

    client: str
    quota: Quota
    allocated: int = 0


@dataclass(frozen=True)
class SettingsChanged:
    """`groups`: the tenant in the settings to which each client's owner belongs by them; who isn't named stays."""

    settings: Settings
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LockWanted:
    """A client that this coordinator does not know waits for the device; or none does any longer."""

    device: str
    wanted: bool


@dataclass(frozen=True)
class TimePassed:
    """The clock reached `next_deadline()`."""


Event = (
    ClientRegistered
    | ClientForgotten
    | DeviceFound
    | DeviceFailed
    | DeviceRecovered
    | ProcessJoined
    | ProcessGone
    | Wanted
    | Unwanted
    | Began
    | Closed
    | Ended
    | NotTaken
    | Evicting
    | Restored
    | MemoryHeld
    | WentIdle
    | WentBusy
    | CellStarted
    | CellEnded
    | TurnReleased
    | TurnHeld
    | Evicted
    | Suspended
    | Resumed
    | Progress
    | QuotaChanged
    | SettingsChanged
    | LockWanted
    | TimePassed
)
