"""Every message of the coordinator's socket, declared once.

One JSON object per line, at most `MAX_LINE` bytes, in both directions. Blank lines are doorbells: they mean "look at
your page" and carry nothing. The type of a message is its `type` field; unknown fields are ignored, so that a newer
peer may add some. Who the peer is comes from SO_PEERCRED, never from a message.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

WIRE_VERSION = 1
MAX_LINE = 64 * 1024
DOORBELL = b"\n"

Text = Annotated[str, msgspec.Meta(max_length=1024)]
Identity = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[\w.:@-]+\Z")]
Epoch = Annotated[int, msgspec.Meta(ge=0, lt=1 << 29)]
Bytes = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Message(msgspec.Struct, tag_field="type", frozen=True, kw_only=True, omit_defaults=True):
    pass


# --- from a process (the shim) -----------------------------------------------------------------------------------


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A device as a process sees it through its driver."""

    uuid: Identity
    name: Text = ""
    memory: Bytes = 0


class Hello(_Message, tag="hello", frozen=True, kw_only=True):
    """A process of a client initialised CUDA (or lost its coordinator and found another).

    Carries descriptors: the page, the client page, then one per device an open file description of its lock file.
    `epoch` and `running` tell the state of its gate, so that a new coordinator can adopt a grant that outlived the old
    one. Answered by Welcome or Join.
    """

    wire: int = 1
    pid: int = 0
    client: Identity
    token: Text = ""
    label: Text = ""
    quota: Text = ""
    devices: Annotated[list[DeviceReport], msgspec.Meta(max_length=64)] = []
    simulated: bool = False
    epoch: Epoch = 0
    running: bool = False


class Wants(_Message, tag="wants", frozen=True, kw_only=True):
    """A thread of this process waits at the gate."""


class Unwants(_Message, tag="unwants", frozen=True, kw_only=True):
    """The last waiting thread of this process gave up (it was interrupted) before the gate opened."""


class Drained(_Message, tag="drained", frozen=True, kw_only=True):
    """After the closing of `epoch`: no call of this process is inside the gate and its submitted work has finished."""

    epoch: Epoch


class Evicting(_Message, tag="evicting", frozen=True, kw_only=True):
    """Closing `epoch`: the submitted work has finished, and memory leaves the device; Drained follows. Sent when
    `orders.hears` says that the coordinator knows it."""

    epoch: Epoch


class Restored(_Message, tag="restored", frozen=True, kw_only=True):
    """What had left the device is back, and the turn of `epoch` begins with its first call. Sent when `orders.hears`
    says that it is known."""

    epoch: Epoch


class Short(_Message, tag="short", frozen=True, kw_only=True):
    """`report.short_bytes` has changed: this process needs so much more of its device, which is full; 0: no more.

    Who can leaves; if nobody can, `orders.no_room` says so. Sent when `orders.hears` says that it is known.
    """


class Idle(_Message, tag="idle", frozen=True, kw_only=True):
    """Under the grant `epoch`, nothing was submitted and nothing ran for `idle_release_ns`."""

    epoch: Epoch


class Busy(_Message, tag="busy", frozen=True, kw_only=True):
    """Under the grant `epoch`, this process works again after an Idle: the turn went on, for another process of the
    client or because it is held. Sent when `orders.hears` says that it is known."""

    epoch: Epoch


class Declined(_Message, tag="declined", frozen=True, kw_only=True):
    """The device's lock has come to this process, by NameNext, when no thread of it waited any more."""


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has allocated of one kind: how many, and bytes in all."""

    kind: Text
    number: Bytes = 0
    bytes: Bytes = 0


class Details(_Message, tag="details", frozen=True, kw_only=True):
    """For diagnostics, when `orders.inspect_seq` of the page has changed to `seq` (page version 5).

    `unhooked` names the driver's entry points that the program has asked for and that its shim doesn't know.
    """

    seq: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    memory_mode: Text = ""
    ledger: Annotated[list[LedgerLine], msgspec.Meta(max_length=64)] = []
    unhooked: Annotated[list[Text], msgspec.Meta(max_length=256)] = []


# --- from the kernel side (cell hooks, magics) and everybody else -------------------------------------------------


class Attach(_Message, tag="attach", frozen=True, kw_only=True):
    """The notebook kernel itself, present also when it never initialises CUDA. Its end of file ends its requests."""

    client: Identity
    token: Text = ""
    label: Text = ""
    quota: Text = ""


class Cell(_Message, tag="cell", frozen=True, kw_only=True):
    """A request of the attached client started or ended running."""

    state: Literal["start", "end"]
    request: Identity


class _Request(_Message, frozen=True, kw_only=True):
    """Answered by Reply or Error with the same `id`."""

    id: int = 0


class Register(_Request, tag="register", frozen=True, kw_only=True):
    """Announce a client before any of its processes exists. Result: `{"client", "devices": [uuid], "known": bool}`.

    More `gpus` than there are devices are refused ("too_many_devices"). `ends_with_sender`: the process that sends this
    becomes the client's program; when it has ended the client is over, without a Forget.
    """

    client: Identity
    token: Text
    label: Text = ""
    quota: Text = ""
    gpus: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    ends_with_sender: bool = False


class Forget(_Request, tag="forget", frozen=True, kw_only=True):
    """The client is over; what is left of it may be dropped as soon as its processes are gone."""

    client: Identity


class Status(_Request, tag="status", frozen=True, kw_only=True):
    """Result: the snapshot, see `docs/design.md`."""


class Subscribe(_Request, tag="subscribe", frozen=True, kw_only=True):
    """Result: a first snapshot; then a Snapshot message after each change, at most ten a second."""


class History(_Request, tag="history", frozen=True, kw_only=True):
    """What clients did in the last ten minutes, after the entry of that number; 0: all that is kept, which begins with
    how things stood then. `client`: of that one only.

    Result: `{"run", "now", "next", "more": bool, "entries": [{"at", "client", "what"}], "utilisation": {uuid: fraction
    or null}}`, see `docs/rest.md`. An answer is no longer than a line, hence `more`: ask again with `next`. Since 0.1.
    """

    after: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    client: Annotated[str, msgspec.Meta(max_length=128)] = ""


class Outlook(_Request, tag="outlook", frozen=True, kw_only=True):
    """What the client waits for (its owner or an admin); cheap enough to be asked every second.

    Result: `{"waiting": bool, "waited_seconds": of this wait, "wait_seconds": of all, "queue_position",
    "expected_wait", "suspended": bool, "draws": [session],
    "running": [{"client", "label", "tenant", "seconds_left"}]}`: who has its devices (`label` is "" for other users'
    clients), and what Draws said. One that is suspended waits for its resumption and has no place in a queue (null).
    Since 0.1.
    """

    client: Identity


class Draws(_Request, tag="draws", frozen=True, kw_only=True):
    """A front end shows waits of the client by itself: requests whose `header.session` is `session` need no printed
    wait. The last 16 are remembered, for the client's life. Result: `{"draws": [session]}`. Since 0.1."""

    client: Identity
    session: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class SetQuota(_Request, tag="quota", frozen=True, kw_only=True):
    """Change a client's quota; an empty `changes` only reads it. Result: the quota.

    Values may be text ("8GiB", "0.5").
    """

    client: Identity
    changes: dict[str, Any] = {}


class Release(_Request, tag="release", frozen=True, kw_only=True):
    """Give up the rest of the turn. Result: `{"released": bool}`."""

    client: Identity


class Hold(_Request, tag="hold", frozen=True, kw_only=True):
    """Keep the devices between cells for so many seconds from now, working or not; 0: no longer; null: for as long as
    the settings allow (`max_hold`). Text such as "5min" will do.

    One that runs keeps what it has; one that doesn't keeps what it gets before the time is over. Result:
    `{"hold_seconds_left": float | null, "running": bool}`. Since 0.1.
    """

    client: Identity
    seconds: float | Text | None = None


class Evict(_Request, tag="evict", frozen=True, kw_only=True):
    """Give up the client's turn, if it has one, and move its memory off the devices; it comes back with its next turn.

    Refused ("conflict") for memory that cannot leave (memory mode plain). Result: `{"evicting": bool, "bytes": what was
    on the devices}`; `evicting`: something was there that leaves now. Since 0.1.
    """

    client: Identity


class Suspend(_Request, tag="suspend", frozen=True, kw_only=True):
    """End the client's turn, give it none, and move its memory off the devices, until Resume. Its calls wait at the
    gate, and can be interrupted there. Result: `{"suspended": true, "changed": bool}`. Since 0.1."""

    client: Identity


class Resume(_Request, tag="resume", frozen=True, kw_only=True):
    """The client takes part again. Result: `{"suspended": false, "changed": bool}`. Since 0.1."""

    client: Identity


class Interrupt(_Request, tag="interrupt", frozen=True, kw_only=True):
    """Make the client's waiting calls return an error (for kernels that are interrupted by message, not by signal)."""

    client: Identity


class Inspect(_Request, tag="inspect", frozen=True, kw_only=True):
    """Look into a process (its owner or an admin), whose pid is that of a snapshot.

    Result: `{"pid", "client", "label", "coordinator", "page": {block: {field: value}}, "details": …}`, where `details`
    has the fields of Details but `seq`. It is null when the process doesn't answer: it is stopped, or its shim is older
    than page version 5.
    """

    pid: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] = 1


class Device(_Request, tag="device", frozen=True, kw_only=True):
    """Take a device out of use because of `failed` (for people), or, if that is empty, into use again (admins).

    New clients get other devices; those that are there are told, and run on. Result: `{"clients": [id]}`, who they are.
    Since 0.1.
    """

    device: Identity
    failed: Text = ""


class Config(_Request, tag="config", frozen=True, kw_only=True):
    """Change settings of the coordinator (admins); an empty `changes` only reads them. Result: the settings."""

    changes: dict[str, Any] = {}


class Stop(_Request, tag="stop", frozen=True, kw_only=True):
    """End the coordinator (admins). Clients run on and wait for another one."""


Incoming = (
    Hello
    | Wants
    | Unwants
    | Drained
    | Evicting
    | Restored
    | Short
    | Idle
    | Busy
    | Declined
    | Details
    | Attach
    | Cell
    | Register
    | Forget
    | Status
    | Subscribe
    | History
    | Outlook
    | Draws
    | SetQuota
    | Release
    | Hold
    | Evict
    | Suspend
    | Resume
    | Interrupt
    | Inspect
    | Device
    | Config
    | Stop
)

# --- from the coordinator -----------------------------------------------------------------------------------------


class Welcome(_Message, tag="welcome", frozen=True, kw_only=True):
    """To a Hello: the process's own page, client page and locks are in use."""


class Join(_Message, tag="join", frozen=True, kw_only=True):
    """To a Hello: descriptors come along, the client page and one lock per device, to be used instead of those sent."""


class Reply(_Message, tag="reply", frozen=True, kw_only=True):
    id: int
    result: Any


class Error(_Message, tag="error", frozen=True, kw_only=True):
    """`reason` is a stable word for programs, `message` a sentence for people: what was wrong and what is allowed."""

    id: int = 0
    reason: str
    message: str


class Snapshot(_Message, tag="snapshot", frozen=True, kw_only=True):
    status: Any


Outgoing = Welcome | Join | Reply | Error | Snapshot
