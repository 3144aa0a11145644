"""Requests about a client's turns."""

from __future__ import annotations

from .base import Identity, Request, Text


class Release(Request, tag="release", frozen=True, kw_only=True):
    """Give up the rest of the turn, and the hold. Result: `{"released": bool, "turn": bool, "hold": bool}`: whether
    there was anything, a turn, a hold."""

    client: Identity


class Hold(Request, tag="hold", frozen=True, kw_only=True):
    """Keep the devices between cells for so many seconds from now, working or not; 0: no longer; null: for as long as
    the settings allow (`max_hold`). Text such as "5min" will do.

    One that runs keeps what it has; one that doesn't keeps what it gets before the time is over. Result:
    `{"hold_seconds_left": float | null, "running": bool}`.
    """

    client: Identity
    seconds: float | Text | None = None


class Evict(Request, tag="evict", frozen=True, kw_only=True):
    """Give up the client's turn, if it has one, and move its memory off the devices; it comes back with its next turn.

    Refused ("conflict") for memory that cannot leave (memory mode plain). Result: `{"evicting": bool, "bytes": what was
    on the devices}`; `evicting`: something was there that leaves now.
    """

    client: Identity


class Suspend(Request, tag="suspend", frozen=True, kw_only=True):
    """End the client's turn, give it none, and move its memory off the devices, until Resume. Its calls wait at the
    gate, and can be interrupted there. Result: `{"suspended": true, "changed": bool}`."""

    client: Identity


class Resume(Request, tag="resume", frozen=True, kw_only=True):
    """The client takes part again. Result: `{"suspended": false, "changed": bool}`."""

    client: Identity


class Interrupt(Request, tag="interrupt", frozen=True, kw_only=True):
    """Make the client's waiting calls return an error (for kernels that are interrupted by message, not by signal)."""

    client: Identity


TurnRequest = Release | Hold | Evict | Suspend | Resume | Interrupt
