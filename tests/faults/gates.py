"""The words of a gate, of messages, and of how a process stands with its coordinator (native/shim/page.h)."""

from __future__ import annotations

from jupyter_gpushare.wire.page import METERED

CLOSED, OPEN, CLOSING, STEP = 0, 1, 2, 3
AWAY, ASKING, THERE = "away", "asking", "there"
WANTS, EVICTING, DRAINED, IDLE, DECLINED, BUSY = "wants", "evicting", "drained", "idle", "declined", "busy"
SHORT = "short"


def is_open(word: int) -> bool:
    return bool(word & 1)


def is_closing(word: int) -> bool:
    return word & 3 == CLOSING


def epoch_of(word: int) -> int:
    return (word & ~METERED) >> 2


def closing_of(word: int) -> int:
    return epoch_of(word) << 2 | CLOSING
