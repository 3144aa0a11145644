"""Errors of the core. An event that raises has changed nothing."""

from __future__ import annotations


class GpuShareError(Exception):
    """Base of all errors of this package's core. `reason` is a stable word for programs."""

    reason = "internal"


class Refused(GpuShareError):
    """A request that cannot be granted as made; the message says what was wrong and what is allowed."""

    reason = "invalid"


class Conflict(Refused):
    """A request that contradicts the present state, such as a memory limit below what is allocated."""

    reason = "conflict"


class TooManyDevices(Refused):
    """More devices are asked for than there are: waiting would not help."""

    reason = "too_many_devices"


class PlacementFailed(Refused):
    """No device can take the client as it asks, or its tenant has no more to give: at this time, or ever."""

    reason = "placement_failed"


class UnknownClient(Refused):
    reason = "unknown_client"


class UnknownProcess(Refused):
    reason = "unknown_process"


class IllegalEvent(GpuShareError):
    """An event that cannot happen in this state: a fault of the edge or of a peer, never of a person."""

    reason = "illegal_event"
