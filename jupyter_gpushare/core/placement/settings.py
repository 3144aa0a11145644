"""Settings of placement: strategy, oversubscription, tenants and topology, with the table of strategies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..base.errors import Refused
from .fragmentation_strategy import FragmentationGradientDescent, TypicalRequests
from .strategies import PackStrategy, PlacementStrategy, SpreadStrategy
from .tenants import Tenant

STRATEGIES: dict[str, Callable[[TypicalRequests], PlacementStrategy]] = {
    "spread": lambda typical: SpreadStrategy(),
    "pack": lambda typical: PackStrategy(),
    "fgd": FragmentationGradientDescent,
}


@dataclass(frozen=True)
class PlacementSettings:
    """Settings that admins make for placement.

    `oversubscription`: how often a device's memory may be promised; None: without bound. `topology`: the tree that
    `topology_cells.TopologyTree` takes; None: all devices are alike.
    """

    strategy: str = "spread"
    oversubscription: float | None = None
    tenants: tuple[Tenant, ...] = ()
    topology: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Check the values. Raises Refused."""
        if self.strategy not in STRATEGIES:
            raise Refused(f"placement={self.strategy!r} is unknown: allowed are {', '.join(STRATEGIES)}")
        bound = self.oversubscription
        if bound is not None and not (math.isfinite(bound) and bound >= 1):
            raise Refused(f"oversubscription={bound:g} is out of range: allowed is 1 or more, or none for no bound")
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) < len(names):
            raise Refused("two tenants have the same name: allowed is each name once")
