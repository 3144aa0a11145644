"""Events of the scheduler: frozen, with times in seconds on a clock that never goes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from ..base.device_info import DeviceInfo, ReportedTurn
from ..base.memory_use import MemoryUse
from ..base.quota import Quota
from ..placement import PlacementRequest
from .settings import Settings


@dataclass(frozen=True)
class ClientRegistered:
    """A client has been registered, or one of its connections has registered it again. A known client keeps its quota.

    A known client keeps its devices as well. `request` is a placement request with more detail than `gpus`; share,
    memory and class of service come from the quota. `tenant`: the tenant in the settings that the client's owner
    belongs to. `running`: the client's program runs already.
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
    """The client has ended: it has no connection, and the edge expects no further one."""

    client: str


@dataclass(frozen=True)
class DeviceFound:
    """A device has been found by NVML, by the simulated driver or in a process's report."""

    device: DeviceInfo


@dataclass(frozen=True)
class DeviceFailed:
    """A device has failed, so new clients get other devices.

    `works`: an admin has taken the device out of use, so the driver can still move clients to other devices.
    """

    device: str
    reason: str
    works: bool = False


@dataclass(frozen=True)
class DeviceRecovered:
    """A device works again, and clients may use it."""

    device: str


@dataclass(frozen=True)
class DevicesRequested:
    """A process of a registered client is about to initialise CUDA, and needs the client's devices.

    A client without processes may get other devices than at its registration.
    """

    client: str


@dataclass(frozen=True)
class MoveRequested:
    """A user or an admin moves the client to another device, which `device` names by UUID, index or name."""

    client: str
    device: str


@dataclass(frozen=True)
class MoveWithdrawn:
    """The request to move the client has been withdrawn. A move that the driver has begun goes on."""

    client: str


@dataclass(frozen=True)
class MoveEnded:
    """The process has moved to the device, or `error` is the reason why the process stays on its device.

    `hibernated`: the bytes that have left the device with a hibernated process; 0: the process is not hibernated.
    """

    process: int
    device: str
    error: str = ""
    hibernated: int = 0


@dataclass(frozen=True)
class MoveDelayed:
    """The device of the client's move has less room than the reports have shown."""

    client: str


@dataclass(frozen=True)
class ProcessJoined:
    """A process of a registered client has initialised CUDA on `devices`.

    `turn`: the turn that the process is in. Such a turn began under an earlier coordinator or without one. None: the
    process is in no turn. `hibernated`: as in MoveEnded.
    """

    client: str
    process: int
    devices: tuple[str, ...]
    turn: ReportedTurn | None = None
    hibernated: int = 0


@dataclass(frozen=True)
class ProcessGone:
    """The process has ended or lost its connection, so no permit binds the process any more."""

    process: int


@dataclass(frozen=True)
class GateWaitStarted:
    """A thread of the process waits at the gate."""

    process: int


@dataclass(frozen=True)
class GateWaitEnded:
    """The last waiting thread of the process has stopped waiting, because it was interrupted."""

    process: int


@dataclass(frozen=True)
class TurnEntered:
    """The process has entered the turn `turn` at the time `at`."""

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
    """The process has left the turn `turn`: its work has finished, and it has released its turn locks.

    `closed_at`: when its gate closed, if no GateClosed has reported the time.
    """

    process: int
    turn: int
    closed_at: float | None = None


@dataclass(frozen=True)
class PermitUnused:
    """The client has not used its permit, and the edge has found the reason.

    `stopped`: one of the client's processes is stopped. Otherwise the processes try to enter in vain, because a client
    unknown to this coordinator has a device.
    """

    client: str
    stopped: bool


@dataclass(frozen=True)
class EvictionStarted:
    """The process's submitted work has finished, and its memory leaves the device. TurnLeft follows."""

    process: int


@dataclass(frozen=True)
class RestoreFinished:
    """The process's memory is back on the device, so that its work begins now."""

    process: int


@dataclass(frozen=True)
class MemoryReported:
    """The client's device memory in bytes: allocated, resident, and the unmovable part of the resident memory.

    `unbacked`: the part of the unmovable memory that stays only because the host has no memory for it.
    `context`: the part of the unmovable memory that is context memory.
    `unmade`: the part of the allocated memory for which neither device nor host has memory yet.
    `unmet_bytes`: the bytes that the client asked for and did not get, because the device is full; 0: the client has
    no such request.
    `by_device`: the part of all that on each device; empty: equal parts on all devices of the client.
    `can_spill`: the client's work reaches memory that is off the device, so all processes have memory mode `unified`.
    """

    client: str
    allocated: int
    resident: int
    unmovable: int = 0
    unmet_bytes: int = 0
    unbacked: int = 0
    context: int = 0
    unmade: int = 0
    by_device: Mapping[str, MemoryUse] = field(default_factory=dict)
    can_spill: bool = False

    @property
    def memory_use(self) -> MemoryUse:
        """Sum over the devices."""
        return MemoryUse(
            self.allocated, self.resident, self.unmovable, self.unbacked, self.context, self.unmade, self.unmet_bytes
        )


@dataclass(frozen=True)
class ProcessIdle:
    """The process, which is in a turn, has submitted and run no GPU work for the idle-release time."""

    process: int


@dataclass(frozen=True)
class ProcessBusy:
    """The process works again in the turn in which it reported itself idle."""

    process: int


@dataclass(frozen=True)
class CellStarted:
    """A cell has started.

    `names` identify the cell, the most exact name first. `busy_seconds`: for which the client's device has had work of
    the client, as in CellEnded.
    """

    client: str
    request: str
    names: tuple[str, ...] = ()
    busy_seconds: float = 0.0


@dataclass(frozen=True)
class CellEnded:
    client: str
    request: str
    busy_seconds: float = inf


@dataclass(frozen=True)
class ReleaseRequested:
    """The client's user has ended the turn and the hold."""

    client: str


@dataclass(frozen=True)
class HoldRequested:
    """The client's user keeps the devices for `seconds` from now, with or without work; 0: the user ends the hold."""

    client: str
    seconds: float


@dataclass(frozen=True)
class EvictRequested:
    """The client's user has ended the turn, and the client's memory leaves the devices until its next turn."""

    client: str


@dataclass(frozen=True)
class SuspendRequested:
    """A request that the client gets no turns and no device memory until ResumeRequested.

    `by_policy`: an earlier coordinator suspended the client for being idle. Then the client's next cell or GPU call
    resumes the client as well, and the event changes nothing if the client is in use or suspended already.
    """

    client: str
    by_policy: bool = False


@dataclass(frozen=True)
class ResumeRequested:
    client: str


@dataclass(frozen=True)
class Progress:
    """The work of the client's processes since they began: launches, blocks of launches, seconds of GPU work.

    `at`: the time at which the processes counted the work; None: now.
    `training_steps`: those that the programs have marked; 0: the programs mark none.
    """

    client: str
    launches: int
    blocks: int
    gpu_seconds: float
    at: float | None = None
    training_steps: int = 0


@dataclass(frozen=True)
class QuotaChanged:
    """The client's quota has changed. `allocated`: the bytes that the client's processes have allocated at present."""

    client: str
    quota: Quota
    allocated: int = 0


@dataclass(frozen=True)
class SettingsChanged:
    """The settings have changed. `tenants`: the tenant of each client; a client without entry keeps its tenant."""

    settings: Settings
    tenants: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LockContended:
    """A client unknown to this coordinator waits for the device, or no such client waits any longer."""

    device: str
    contended: bool


@dataclass(frozen=True)
class Tick:
    """The clock has reached `next_deadline()`."""


Event = (
    ClientRegistered
    | ClientRemoved
    | DeviceFound
    | DeviceFailed
    | DeviceRecovered
    | DevicesRequested
    | MoveRequested
    | MoveWithdrawn
    | MoveEnded
    | MoveDelayed
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
