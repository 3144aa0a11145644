"""Errors of `%gpushare` and of the functions of `jupyter_gpushare`, whose messages users see."""

from __future__ import annotations


class GpuShareError(Exception):
    """Failure of a call, which has changed nothing unless the message names a change."""


class UsageError(GpuShareError, ValueError):
    """Invalid argument; the message lists the allowed values."""


class NotShared(GpuShareError):
    """Call in a program that does not share its GPU; the message gives the reason."""


class Unreachable(GpuShareError):
    """Request that no coordinator has answered.

    `problem` gives the place and the reason, and the message also the outcome of the request.
    """

    UNKNOWN_OUTCOME = "the request may have had an effect"

    def __init__(self, problem: str, outcome: str = "nothing was changed") -> None:
        super().__init__(f"{problem}; {outcome}")
        self.problem = problem
        self.may_have_had_effect = outcome == self.UNKNOWN_OUTCOME


class Refused(GpuShareError):
    """Request that the coordinator has refused; the message gives the reason or the allowed values.

    `reason` is a stable code: "invalid", "conflict", "forbidden", "unknown_client", "malformed" …
    """

    def __init__(self, message: str, reason: str = "refused") -> None:
        super().__init__(message)
        self.reason = reason
