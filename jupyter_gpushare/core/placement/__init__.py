"""Where clients go: labels, fit, fragmentation, tenants with topology cells.

`Placement` is the door; it keeps no clock and does no input or output.
"""

from __future__ import annotations

from .books import Book
from .cells import LEVELS
from .places import Placed, Placement
from .request import LABELS, WORDS, Request
from .settings import STRATEGIES, PlacementSettings
from .tenants import Tenant

__all__ = [
    "LABELS",
    "LEVELS",
    "STRATEGIES",
    "WORDS",
    "Book",
    "Placed",
    "Placement",
    "PlacementSettings",
    "Request",
    "Tenant",
]
