"""Commands of the scheduler to its edge, which carries commands out in order."""

from __future__ import annotations

from dataclasses import dataclass

from .launch_budget import LaunchBudget


@dataclass(frozen=True)
class Permit:
    """A level for the pages of all processes of the client, which holds until the next permit.

    `may`: the processes may be in the turn `turn`, which they enter by themselves on all of `devices`. `relieved`:
    another client can follow without a further command, so the turn ends at its deadline. `contended`: another client
    waits, or is limited for this one, so an idle turn ends early. `deadline` in seconds; None: no deadline is known.
    `epoch`: the number of the permit. A process that has left a turn under an epoch never enters again under it.
    """

    client: str
    turn: int
    epoch: int
    devices: tuple[str, ...]
    may: bool
    relieved: bool = False
    contended: bool = False
    deadline: float | None = None


@dataclass(frozen=True)
class CheckUnusedPermit:
    """A request to find out why the client has not used its permit; PermitUnused answers it.

    The client's devices have been free for a while.
    """

    client: str


@dataclass(frozen=True)
class UpdateQuota:
    """A request to write the quota of a client to its pages: the quota, the client or its class of service is new."""

    client: str


@dataclass(frozen=True)
class SetResident:
    """The bytes that the client may keep on a device; None: all bytes.

    The bound holds from the end of the client's turn on, or at once if the client has no turn. Memory that makes room
    for a Permit of the same list leaves before the permit is written.
    """

    client: str
    device: str
    bytes: int | None


@dataclass(frozen=True)
class SetTurnLimit:
    """The bytes of the client that may be on its device in its turn; None: all bytes.

    The limit holds at once, also in a turn that runs.
    """

    client: str
    bytes: int | None


@dataclass(frozen=True)
class Prefetch:
    """A request to begin or to stop the prefetch of the client, which runs next on the device.

    A prefetch restores memory of the device as far as the device has room.
    """

    client: str
    device: str
    enabled: bool


@dataclass(frozen=True)
class SetBudget:
    """The launch budget of a client while others are colocated with it; None: no limit."""

    client: str
    budget: LaunchBudget | None


@dataclass(frozen=True)
class ReportOverrun:
    """A report that the client did not drain in time. The client keeps the device until it has drained."""

    client: str
    turn: int
    seconds: float


@dataclass(frozen=True)
class InterruptKernel:
    """A request to interrupt the client's kernel, as the stop button does, because the client's turn does not end."""

    client: str
    turn: int
    seconds: float  # since the closing began


@dataclass(frozen=True)
class NotifyUser:
    """A message to the client's user about the client's devices."""

    client: str
    message: str


@dataclass(frozen=True)
class PrepareMove:
    """A request to the client's process to wait for a turn that includes `device`, and to move there at its end.

    `hibernates`: the device is the client's own, and the process leaves the device without moving to another one.
    A hibernated process returns to the device.
    """

    client: str
    device: str
    hibernates: bool = False


@dataclass(frozen=True)
class StartMove:
    """The client is in that turn without work, and `device` has `needed` free bytes by the reports.

    `copied`: the bytes of them that the driver copies to the host meanwhile.
    `hibernates`, `returns`: the process leaves the device without moving to another one, or returns to the device.
    `leaves_others`: other clients have turns on the client's own device meanwhile, which then has no room for it.
    """

    client: str
    device: str
    needed: int
    copied: int
    hibernates: bool = False
    returns: bool = False
    leaves_others: bool = False


@dataclass(frozen=True)
class FinishMove:
    """The client has moved to `device`, or `error` is the reason why the client stays where it is.

    `hibernates`, `returns`: as in StartMove.
    """

    client: str
    device: str
    error: str = ""
    hibernates: bool = False
    returns: bool = False


Command = (
    Permit
    | CheckUnusedPermit
    | UpdateQuota
    | SetResident
    | SetTurnLimit
    | Prefetch
    | SetBudget
    | ReportOverrun
    | InterruptKernel
    | NotifyUser
    | PrepareMove
    | StartMove
    | FinishMove
)
