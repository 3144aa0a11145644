"""Placements with devices, on which tests place clients."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.core.placement import Placement, PlacementRequest, PlacementSettings, Tenant

GIB = 1 << 30
MEMORY = 80 * GIB


def make_placement(devices: int, settings: PlacementSettings | None = None, memory: int = MEMORY) -> Placement:
    """Return a placement with the devices d0, d1, … of `memory` bytes."""
    placement = Placement(settings)
    for number in range(devices):
        placement.add_device(f"d{number}", f"Device {number}", memory)
    return placement


def make_tenant_placement(devices: int, topology: Any = None, **cells: dict[str, int]) -> Placement:
    tenants = tuple(Tenant(name, cells=wanted) for name, wanted in cells.items())
    return make_placement(devices, PlacementSettings(tenants=tenants, topology=topology))


def place_client(placement: Placement, client: str, tenant: str = "", **request: Any) -> tuple[str, ...]:
    """Place a client, and return its devices."""
    return placement.place(client, PlacementRequest(**request), tenant)


TWO_SOCKETS = {  # 8 devices
    "n": {"s0": {"w0": ["d0", "d1"], "w1": ["d2", "d3"]}, "s1": {"w2": ["d4", "d5"], "w3": ["d6", "d7"]}}
}
