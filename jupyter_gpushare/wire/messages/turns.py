"""Requests about a client's turns."""

from __future__ import annotations

from .base import Identity, Request, Text


class Release(Request, tag="release", frozen=True, kw_only=True):
    """Request to end the client's turn and hold.

    Result: `{"released": bool, "turn": bool, "hold": bool}`.
    `turn` and `hold` are true for what has ended, and `released` is true if either has.
    """

    client: Identity


class Hold(Request, tag="hold", frozen=True, kw_only=True):
    """Request to keep the devices between cells for `seconds` from now, with or without work.

    0 ends the hold, null stands for the setting `max_hold`, and text such as "5min" is allowed.
    A client that runs keeps its devices. A client that waits keeps the devices that it gets before the time is over.
    Result: `{"hold_seconds_left": float | null, "running": bool}`.
    """

    client: Identity
    seconds: float | Text | None = None


class Evict(Request, tag="evict", frozen=True, kw_only=True):
    """Request to end the client's turn and to evict its memory until the next turn.

    The coordinator refuses the request for memory that cannot be evicted, as in memory mode plain ("conflict").
    Result: `{"evicting": bool, "bytes": bytes that leave}`; `evicting` is true if there are such bytes.
    """

    client: Identity


class Suspend(Request, tag="suspend", frozen=True, kw_only=True):
    """Request to end the client's turn, to evict its memory, and to give the client no turn until Resume.

    The client's calls wait at the gate, where they can be interrupted.
    Result: `{"suspended": true, "changed": bool}`.
    """

    client: Identity


class Resume(Request, tag="resume", frozen=True, kw_only=True):
    """Request to end the client's suspension. Result: `{"suspended": false, "changed": bool}`."""

    client: Identity


class Interrupt(Request, tag="interrupt", frozen=True, kw_only=True):
    """Request that the client's waiting calls return an error.

    Kernels that are interrupted by a message instead of a signal need it.
    """

    client: Identity


class Move(Request, tag="move", frozen=True, kw_only=True):
    """Request to move the client to `device`, a UUID, an index or a name, with its memory and its contexts.

    The coordinator answers when the client has moved, or when the client stays where it is ("conflict").
    Result: `{"device": UUID}`.
    """

    client: Identity
    device: Text


TurnRequest = Release | Hold | Evict | Suspend | Resume | Interrupt | Move
