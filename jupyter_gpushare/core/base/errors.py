"""Errors of the core, each with a stable reason for programs."""

from __future__ import annotations


class GpuShareError(Exception):
    """Base of all errors of the core. `reason` is a stable word for programs."""

    reason = "internal"


class Refused(GpuShareError):
    """A request that cannot be granted. The message names the offending value and the allowed values."""

    reason = "invalid"


class Conflict(Refused):
    """A request that contradicts the present state, such as a memory quota below the allocated bytes."""

    reason = "conflict"


class TooManyDevices(Refused):
    """A request for more devices than exist, so that waiting would not help."""

    reason = "too_many_devices"


class PlacementFailed(Refused):
    """A request that no device or ceiling admits, at present or at any time."""

    reason = "placement_failed"


class NoRoom(PlacementFailed):
    """A request that would be admitted without the clients that are there now, so that waiting may help."""

    reason = "no_room"


class AboveCeiling(PlacementFailed):
    """A request above a ceiling of its tenant, which no device changes."""


class CeilingReached(NoRoom):
    """A request for which a ceiling of its tenant has nothing left, until other clients of the tenant end."""


class NoNode(Refused):
    """A request for which no node of a cluster has answered."""

    reason = "no_node"


class UnknownClient(Refused):
    reason = "unknown_client"


class UnknownProcess(Refused):
    reason = "unknown_process"


class IllegalEvent(GpuShareError):
    """An event that cannot happen in this state: a fault of the edge or of a program, never of a user."""

    reason = "illegal_event"
