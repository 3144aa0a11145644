"""Answers to a peer: what it asked for, or why not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...wire import messages
from ...wire.client import encode
from .connection import Connection

refusal_counts: Counter[str] = Counter()  # messages of this coordinator's peers, by reason


def reply(connection: Connection, number: int, result: Any) -> None:
    """To its request `number`."""
    connection.send(encode(messages.Reply(id=number, result=result)))


def refuse(connection: Connection, number: int, reason: str, message: str) -> None:
    """`number` is 0 for what is no request; `reason` is for programs, `message` for people."""
    refusal_counts[reason] += 1
    connection.send(encode(messages.Error(id=number, reason=reason, message=message)))
