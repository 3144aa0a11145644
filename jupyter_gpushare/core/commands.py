"""What the scheduler asks of its edge. The edge carries commands out in order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grant:
    """Lock the devices for the client, then open the gates of `processes` with `epoch`.

    If a lock is held elsewhere, lock and open nothing and report LockRefused. A client that holds devices already may
    be granted further ones: some of its gates are then open or closing under an earlier epoch. `shared`: others of ours
    may hold the devices at the same time.
    """

    client: str
    epoch: int
    devices: tuple[str, ...]
    processes: tuple[int, ...]
    shared: bool = False


@dataclass(frozen=True)
class Open:
    """Open gates under locks that the client holds already: a joining process, or a retried closing.

    `step`: for one call of each thread, which then waits again until the gate opens another time.
    """

    client: str
    epoch: int
    processes: tuple[int, ...]
    step: bool = False


@dataclass(frozen=True)
class NameNext:
    """Tell `process` of the client that with the device's lock, which `giver` will give up when it has drained, it may
    open its gate by itself with `epoch`. A Grant of that epoch follows, unless Unname does.
    """

    client: str
    epoch: int
    process: int
    giver: int


@dataclass(frozen=True)
class Unname:
    """Take a NameNext back. `process` may have the lock and an open gate by then: grants are refused until it goes."""

    client: str
    process: int
    giver: int


@dataclass(frozen=True)
class Close:
    """Close the gates opened with `epoch`; each process answers Drained (or goes)."""

    client: str
    epoch: int
    processes: tuple[int, ...]


@dataclass(frozen=True)
class Free:
    """Unlock the client's devices: all its processes have drained."""

    client: str
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Orders:
    """Levels for the pages of a client that holds a grant. `deadline` in seconds, None: nobody waits."""

    client: str
    contended: bool
    deadline: float | None


@dataclass(frozen=True)
class Limits:
    """The client's quota changed (or it is new): write it to its pages."""

    client: str


@dataclass(frozen=True)
class SetResident:
    """Bytes that the client may keep on its devices from the end of its turn on, or from now if it has none; None:
    everything. What a Grant of the same list needs leaves before.
    """

    client: str
    bytes: int | None


@dataclass(frozen=True)
class RestoreAhead:
    """The client runs next: bring back what it has on the host, as far as there is room, while it waits; or no more."""

    client: str
    wanted: bool


@dataclass(frozen=True)
class SetRate:
    """How fast the client may launch while others run beside it: `launch_rate` in blocks per second, all its processes
    together, and `spacing_ppm`, GPU time at most of all time, in millionths. 0: not limited.
    """

    client: str
    launch_rate: int
    spacing_ppm: int


@dataclass(frozen=True)
class Overrun:
    """The client did not drain in time; report it. It keeps the device until it does."""

    client: str
    epoch: int
    seconds: float


@dataclass(frozen=True)
class Interrupt:
    """The client's turn will not end: ask its kernel to interrupt what it runs, as the stop button does."""

    client: str
    epoch: int
    seconds: float  # since its closing began


@dataclass(frozen=True)
class Notice:
    """Tell the client's user something about its devices."""

    client: str
    message: str


Command = (
    Grant
    | Open
    | NameNext
    | Unname
    | Close
    | Free
    | Orders
    | Limits
    | SetResident
    | RestoreAhead
    | SetRate
    | Overrun
    | Interrupt
    | Notice
)
