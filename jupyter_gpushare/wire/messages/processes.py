"""Messages of a process: its hello, its details and its moves. The page has the state of its gate and its memory."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .base import WIRE_VERSION, Bytes, Identity, Message, Text


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Device as a process gets it from its driver."""

    uuid: Identity
    name: Text = ""
    memory: Bytes = 0


class Hello(Message, tag="hello", frozen=True, kw_only=True):
    """First message of a process that has initialised CUDA or that has connected again.

    The message carries two descriptors: the page, which is new for this connection, and the client page.
    The page's `report.turn` has the turn of the process, so that a new coordinator can adopt the turn.
    The answer is Welcome or Join.
    `hibernated`: the bytes that have left the device with a hibernated process; 0: the process is not hibernated.
    """

    wire: int = WIRE_VERSION
    pid: int = 0
    client: Identity
    token: Text = ""
    label: Text = ""
    quota: Text = ""
    devices: Annotated[list[DeviceReport], msgspec.Meta(max_length=64)] = []
    simulated: bool = False
    hibernated: Bytes = 0


class AllocationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Number and total bytes of a process's allocations of one kind."""

    kind: Text
    number: Bytes = 0
    bytes: Bytes = 0


class Details(Message, tag="details", frozen=True, kw_only=True):
    """Diagnostics of a process, sent when the page's `control.inspect_seq` has changed to `seq`.

    `unhooked` names the driver's entry points that the program has looked up and that its shim has no hook for.
    """

    seq: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    memory_mode: Text = ""
    ledger: Annotated[list[AllocationSummary], msgspec.Meta(max_length=64)] = []
    unhooked: Annotated[list[Text], msgspec.Meta(max_length=256)] = []


class Moved(Message, tag="moved", frozen=True, kw_only=True):
    """Answer to PrepareMove: the process has moved to `device`, or `error` is the reason why it stays on its device.

    After a move the process connects again, and its hello has the new device.
    `hibernated`: as in Hello.
    """

    device: Identity
    error: Text = ""
    hibernated: Bytes = 0
