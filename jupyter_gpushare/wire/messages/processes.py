"""Messages of a process: its hello, and answers to questions. What its gate and its memory do is in its page."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .base import WIRE_VERSION, Bytes, Identity, Message, Text


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A device as a process sees it through its driver."""

    uuid: Identity
    name: Text = ""
    memory: Bytes = 0


class Hello(Message, tag="hello", frozen=True, kw_only=True):
    """A process of a client initialised CUDA (or lost its coordinator and found another).

    Carries two descriptors: the page, new for this connection, and the client page. `report.turn` of the page says
    where the process stands with its turn, so that a new coordinator can adopt a turn that outlived the old one.
    Answered by Welcome or Join.
    """

    wire: int = WIRE_VERSION
    pid: int = 0
    client: Identity
    token: Text = ""
    label: Text = ""
    quota: Text = ""
    devices: Annotated[list[DeviceReport], msgspec.Meta(max_length=64)] = []
    simulated: bool = False


class AllocationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has allocated of one kind: how many, and bytes in all."""

    kind: Text
    number: Bytes = 0
    bytes: Bytes = 0


class Details(Message, tag="details", frozen=True, kw_only=True):
    """For diagnostics, when `control.inspect_seq` of the page has changed to `seq`.

    `unhooked` names the driver's entry points that the program has asked for and that its shim doesn't know.
    """

    seq: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)] = 0
    memory_mode: Text = ""
    ledger: Annotated[list[AllocationSummary], msgspec.Meta(max_length=64)] = []
    unhooked: Annotated[list[Text], msgspec.Meta(max_length=256)] = []
