"""What happens to the scheduler. Nouns; frozen; times are seconds on a clock that never jumps back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..base.device_info import DeviceInfo, ReportedTurn
from ..base.quota import Quota
from ..placement import PlacementRequest
from .settings import Settings


@dataclass(frozen=True)
class ClientRegistered:
    """A client is announced, or one of its members brings it back. Known clients keep their quota and devices.

    `request` says more of the devices that it wants than `gpus` does; share, memory and class are the quota's. `tenant`
    names the one of the tenants in the settings that its owner belongs to. `running`: its program is there already.
    """

    client: str
    user: str = ""
    label: str = ""
    quota: Quota = field(default_factory=Quota)
    gpus: int = 1
    request: PlacementRequest | None = None
    tenant: str = ""
    running: bool = False


@dataclass(frozen=True)
class ClientRemoved:
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
    turn: ReportedTurn | None = None


@dataclass(frozen=True)
class ProcessGone:
    """The process has ended, or lost its connection: it is under nobody's orders any more."""

    process: int


@dataclass(frozen=True)
class GateWaitStarted:
    """A thread of the process waits at the gate."""

    process: int


@dataclass(frozen=True)
class GateWaitEnded:
    """The last waiting thread of the process gave up (it was interrupted)."""

    process: int


@dataclass(frozen=True)
class TurnEntered:
    """The process has entered the turn `turn`, at the time `at`."""

    process: int
    turn: int
    at: float


@dataclass(frozen=True)
class GateClosed:
    """The process, which is in the turn `turn`, has closed its gate at the time `at`."""

    process: int
    turn: int
    at: float


@dataclass(frozen=True)
class TurnLeft:
    """The process has left the turn `turn`: its work has finished, and it holds no lock any more.

    `closed_at`: when its gate closed, if no GateClosed has reported it.
    """

    process: int
    turn: int
    closed_at: float | None = None


@dataclass(frozen=True)
class PermitUnused:
    """The client has not begun by its permit: one of its processes is stopped; else its processes try in vain, because
    a client that this coordinator does not know has a device."""

    client: str
    stopped: bool


@dataclass(frozen=True)
class EvictionStarted:
    """The process's submitted work has finished, and its memory leaves the device; TurnLeft follows."""

    process: int


@dataclass(frozen=True)
class RestoreFinished:
    """The process's memory is back on the device: only now its work begins."""

    process: int


@dataclass(frozen=True)
class MemoryReported:
    """What the client's processes say of their device memory, in bytes: allocated, of those on the device, and of
    those what can't leave it. `unmet_bytes`: asked for and not got, because the device is full; 0: nothing any more.
    """

    client: str
    allocated: int
    resident: int
    unmovable: int = 0
    unmet_bytes: int = 0


@dataclass(frozen=True)
class ProcessIdle:
    """The process, which is in a turn, submitted nothing and ran nothing for the idle-release time."""

    process: int


@dataclass(frozen=True)
class ProcessBusy:
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
class ReleaseRequested:
    """The client's user gives up the rest of the turn."""

    client: str


@dataclass(frozen=True)
class HoldRequested:
    """The client's user keeps the devices for so many seconds from now, working or not; 0: no longer."""

    client: str
    seconds: float


@dataclass(frozen=True)
class EvictRequested:
    """The client's user gives up the turn and moves its memory off the devices, until its next turn."""

    client: str


@dataclass(frozen=True)
class SuspendRequested:
    """The client gets no turns, and its memory leaves the devices, until ResumeRequested.

    `by_policy`: for being idle, as an earlier coordinator decided; then its next cell or GPU call resumes it too, and
    this changes nothing if it is in use, or suspended already.
    """

    client: str
    by_policy: bool = False


@dataclass(frozen=True)
class ResumeRequested:
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
    """`tenants`: the tenant in the settings to which each client's owner belongs by them; who isn't named stays."""

    settings: Settings
    tenants: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LockContended:
    """A client that this coordinator does not know waits for the device; or none does any longer."""

    device: str
    contended: bool


@dataclass(frozen=True)
class Tick:
    """The clock reached `next_deadline()`."""


Event = (
    ClientRegistered
    | ClientRemoved
    | DeviceFound
    | DeviceFailed
    | DeviceRecovered
    | ProcessJoined
    | ProcessGone
    | GateWaitStarted
    | GateWaitEnded
    | TurnEntered
    | GateClosed
    | TurnLeft
    | PermitUnused
    | EvictionStarted
    | RestoreFinished
    | MemoryReported
    | ProcessIdle
    | ProcessBusy
    | CellStarted
    | CellEnded
    | ReleaseRequested
    | HoldRequested
    | EvictRequested
    | SuspendRequested
    | ResumeRequested
    | Progress
    | QuotaChanged
    | SettingsChanged
    | LockContended
    | Tick
)
