"""From the coordinator."""

from __future__ import annotations

from typing import Any

from .base import Message


class Welcome(Message, tag="welcome", frozen=True, kw_only=True):
    """To a Hello: the process's own page and client page are in use."""


class Join(Message, tag="join", frozen=True, kw_only=True):
    """To a Hello: the client page comes along, to be used instead of the one sent."""


class Reply(Message, tag="reply", frozen=True, kw_only=True):
    id: int
    result: Any


class Error(Message, tag="error", frozen=True, kw_only=True):
    """`reason` is a stable word for programs, `message` a sentence for people: what was wrong and what is allowed."""

    id: int = 0
    reason: str
    message: str


class Snapshot(Message, tag="snapshot", frozen=True, kw_only=True):
    status: Any


Outgoing = Welcome | Join | Reply | Error | Snapshot
