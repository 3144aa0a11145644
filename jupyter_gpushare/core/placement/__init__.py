"""Placement of clients on devices: labels, fit, fragmentation, and tenants with topology cells.

`Placement` is the interface; it has no clock and does no input or output.
"""

from __future__ import annotations

from .device_allocations import DeviceAllocations
from .placement import PlacedClient, Placement
from .request import LABEL_NAMES, OPTION_NAMES, PlacementRequest
from .settings import STRATEGIES, PlacementSettings
from .tenants import Tenant
from .topology_cells import LEVELS

__all__ = [
    "LABEL_NAMES",
    "LEVELS",
    "OPTION_NAMES",
    "STRATEGIES",
    "DeviceAllocations",
    "PlacedClient",
    "Placement",
    "PlacementRequest",
    "PlacementSettings",
    "Tenant",
]
