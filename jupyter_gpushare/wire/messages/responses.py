"""Messages of the coordinator: answers to hellos and requests, and snapshots."""

from __future__ import annotations

from typing import Any

from .base import Message


class Welcome(Message, tag="welcome", frozen=True, kw_only=True):
    """Answer to a Hello whose page and client page the coordinator uses."""


class Join(Message, tag="join", frozen=True, kw_only=True):
    """Answer to a Hello with another client page, which replaces the one that the process has sent."""


class Reply(Message, tag="reply", frozen=True, kw_only=True):
    """Result of the request with this `id`."""

    id: int
    result: Any


class Error(Message, tag="error", frozen=True, kw_only=True):
    """Refusal of the request with this `id`.

    `reason` is a stable word for programs.
    `message` is a sentence for users with the problem and the allowed values.
    """

    id: int = 0
    reason: str
    message: str


class MemoryShortage(Message, tag="memory_shortage", frozen=True, kw_only=True):
    """Report to an attached kernel that the memory of one of its devices is short from now on, or no longer.

    Without a report, memory is not short.
    """

    is_short: bool


class PrepareMove(Message, tag="move", frozen=True, kw_only=True):
    """Request to a process to wait for a turn that includes the first of `devices`, and to move there at its end.

    The other devices are those of the host, which the driver needs to know.
    A process that is on the first device already hibernates if `hibernates`; otherwise it returns from hibernation.
    """

    devices: list[str]
    hibernates: bool = False


class StartMove(Message, tag="move_start", frozen=True, kw_only=True):
    """Report to a process that the device of its move has room, so that its move may begin.

    `bytes`: those that leave the device with a process that hibernates.
    """

    bytes: int = 0


class CancelMove(Message, tag="move_cancel", frozen=True, kw_only=True):
    """Request to a process to stay on its device, unless its move has begun."""


class RoomRefused(Message, tag="room_refused", frozen=True, kw_only=True):
    """Refusal of the room for a process's memory, which ends the calls that wait for a turn by an error.

    `reason`: the sentences for the user of the process.
    """

    reason: str


class Snapshot(Message, tag="snapshot", frozen=True, kw_only=True):
    """Snapshot for a subscription."""

    status: Any


Outgoing = Welcome | Join | Reply | Error | MemoryShortage | PrepareMove | StartMove | CancelMove | Snapshot
