"""Answers to a peer: what it asked for, or why not."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..wire import messages
from ..wire.client import encode
from .peer import Peer

refused: Counter[str] = Counter()  # messages of this coordinator's peers, by reason


def reply(peer: Peer, number: int, result: Any) -> None:
    """To its request `number`."""
    peer.send(encode(messages.Reply(id=number, result=result)))


def refuse(peer: Peer, number: int, reason: str, message: str) -> None:
    """`number` is 0 for what is no request; `reason` is for programs, `message` for people."""
    refused[reason] += 1
    peer.send(encode(messages.Error(id=number, reason=reason, message=message)))
