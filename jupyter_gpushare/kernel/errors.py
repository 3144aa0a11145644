"""What can go wrong with a call of `%gpushare` or `jupyter_gpushare`. Every message is a sentence for people."""

from __future__ import annotations


class GpuShareError(Exception):
    """A call that could not be done; it has changed nothing, unless the message says otherwise."""


class UsageError(GpuShareError, ValueError):
    """What was asked for makes no sense; the message names what is allowed."""


class NotShared(GpuShareError):
    """This program does not share its GPU; the message says why."""


class Unreachable(GpuShareError):
    """No coordinator answers: `problem` says where and why, and the message also what has become of the request."""

    def __init__(self, problem: str, fate: str = "nothing was changed") -> None:
        super().__init__(f"{problem}; {fate}")
        self.problem = problem


class Refused(GpuShareError):
    """The coordinator answered that it will not; the message says what is allowed.

    `reason` is a stable word: "invalid", "conflict", "forbidden", "unknown_client", "malformed" …
    """

    def __init__(self, message: str, reason: str = "refused") -> None:
        super().__init__(message)
        self.reason = reason
