"""Replies and errors to a peer."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ...wire import messages
from ...wire.client import encode
from .connection import Connection

refusal_counts: Counter[str] = Counter()  # refused messages of this process, by reason


def reply(connection: Connection, number: int, result: Any) -> None:
    """Send the result of the request `number`."""
    connection.send(encode(messages.Reply(id=number, result=result)))


def refuse(connection: Connection, number: int, reason: str, message: str) -> None:
    """Send an error. `number` is 0 for a message that is no request; programs read `reason`, users read `message`."""
    refusal_counts[reason] += 1
    connection.send(encode(messages.Error(id=number, reason=reason, message=message)))
