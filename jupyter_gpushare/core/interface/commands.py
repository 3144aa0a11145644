"""What the scheduler asks of its edge. The edge carries commands out in order."""

from __future__ import annotations

from dataclasses import dataclass

from .launch_budget import LaunchBudget


@dataclass(frozen=True)
class Permit:
    """A level for the pages of all processes of the client, until another one follows.

    `may`: they may be in the turn `turn`, which they enter by themselves on all of `devices`. `relieved`: another
    client takes over, so the turn ends at its deadline without a further command. `contended`: another client waits, so
    idleness matters. `deadline` in seconds; None: not known. `epoch` counts permissions: one that a process has left
    under is used up.
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
    """Find out why the client has not used its permit (PermitUnused).

    The client's devices have been free for a while.
    """

    client: str


@dataclass(frozen=True)
class UpdateQuota:
    """The client's quota changed (or it is new): write it to its pages."""

    client: str


@dataclass(frozen=True)
class SetResident:
    """Bytes that the client may keep on its devices from the end of its turn on, or from now if it has none; None:
    everything. What a Permit of the same list needs leaves before.
    """

    client: str
    bytes: int | None


@dataclass(frozen=True)
class Prefetch:
    """The client runs next: bring back what it has on the host, as far as there is room, while it waits; or no more."""

    client: str
    enabled: bool


@dataclass(frozen=True)
class SetBudget:
    """How fast the client may launch while others run beside it; None: not limited."""

    client: str
    budget: LaunchBudget | None


@dataclass(frozen=True)
class ReportOverrun:
    """The client did not drain in time; report it. It keeps the device until it does."""

    client: str
    turn: int
    seconds: float


@dataclass(frozen=True)
class InterruptKernel:
    """The client's turn will not end: ask its kernel to interrupt what it runs, as the stop button does."""

    client: str
    turn: int
    seconds: float  # since its closing began


@dataclass(frozen=True)
class NotifyUser:
    """Tell the client's user something about its devices."""

    client: str
    message: str


Command = (
    Permit
    | CheckUnusedPermit
    | UpdateQuota
    | SetResident
    | Prefetch
    | SetBudget
    | ReportOverrun
    | InterruptKernel
    | NotifyUser
)
