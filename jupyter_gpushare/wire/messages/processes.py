"""From a process: the shim says hello, and from then on what the gate, the drain and its memory do."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .base import Bytes, Epoch, Identity, Message, Text


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A device as a process sees it through its driver."""

    uuid: Identity
    name: Text = ""
    memory: Bytes = 0


class Hello(Message, tag="hello", frozen=True, kw_only=True):
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


class Wants(Message, tag="wants", frozen=True, kw_only=True):
    """A thread of this process waits at the gate."""


class Unwants(Message, tag="unwants", frozen=True, kw_only=True):
    """The last waiting thread of this process gave up (it was interrupted) before the gate opened."""


class Drained(Message, tag="drained", frozen=True, kw_only=True):
    """After the closing of `epoch`: no call of this process is inside the gate and its submitted work has finished."""

    epoch: Epoch


class Evicting(Message, tag="evicting", frozen=True, kw_only=True):
    """Closing `epoch`: the submitted work has finished, and memory leaves the device; Drained follows. Sent when
    `orders.hears` says that the coordinator knows it."""

    epoch: Epoch


class Restored(Message, tag="restored", frozen=True, kw_only=True):
    """What had left the device is back, and the turn of `epoch` begins with its first call. Sent when `orders.hears`
    says that it is known."""

    epoch: Epoch


class Short(Message, tag="short", frozen=True, kw_only=True):
    """`report.short_bytes` has changed: this process needs so much more of its device, which is full; 0: no more.

    Memory of other clients leaves; if none can, `orders.no_room` names this request. Sent when `orders.hears` says that
    it is known, and again every 100 ms with a new number: a later one stands for those before.
    """


class Idle(Message, tag="idle", frozen=True, kw_only=True):
    """Under the grant `epoch`, nothing was submitted and nothing ran for `idle_release_ns`."""

    epoch: Epoch


class Busy(Message, tag="busy", frozen=True, kw_only=True):
    """Under the grant `epoch`, this process works again after an Idle: the turn went on, for another process of the
    client or because it is held. Sent when `orders.hears` says that it is known."""

    epoch: Epoch


class Declined(Message, tag="declined", frozen=True, kw_only=True):
    """The device's lock has come to this process, by NameNext, when no thread of it waited any more."""


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has allocated of one kind: how many, and bytes in all."""

    kind: Text
    number: Bytes = 0
    bytes: Bytes = 0


class Details(Message, tag="details", frozen=True, kw_only=True):
    """For diagnostics, when `orders.inspect_seq` of the page has changed to `seq` (page version 5).

    `unhooked` names the driver's entry points that the program has asked for and that its shim doesn't know.
    """

    seq: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    memory_mode: Text = ""
    ledger: Annotated[list[LedgerLine], msgspec.Meta(max_length=64)] = []
    unhooked: Annotated[list[Text], msgspec.Meta(max_length=256)] = []


AfterHello = Wants | Unwants | Drained | Evicting | Restored | Short | Idle | Busy | Declined | Details
