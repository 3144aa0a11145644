"""Tenants: named groups of users with ceilings for their clients, and with topology cells of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...units import format_size, size_word
from ..base.errors import AboveCeiling, CeilingReached, PlacementFailed, Refused
from ..base.quota import Quota
from .topology_cells import LEVELS

KEYS = ("share", "limit", "memory", "max_clients", "cells")


@dataclass(frozen=True)
class Tenant:
    """Ceilings and guaranteed cells of one tenant; None: no ceiling.

    `share`: the sum of its clients' guaranteed shares, in devices (1.5: one and a half). `limit` and `memory` (bytes):
    the values of each client. `max_clients`: the number of clients. `cells`: the number of guaranteed topology cells of
    each level.
    """

    name: str
    share: float | None = None
    limit: float = 1.0
    memory: int | None = None
    max_clients: int | None = None
    cells: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values. Raises Refused with the tenant, the field and the allowed values."""
        where = f"tenant {self.name!r}"
        if not self.name:
            raise Refused("a tenant needs a name")
        if self.share is not None and not (math.isfinite(self.share) and self.share >= 0):
            raise Refused(f"{where}: share={self.share:g} is out of range: allowed is 0 or more (1: a whole device)")
        if not math.isfinite(self.limit) or not 0 < self.limit <= 1:
            raise Refused(f"{where}: limit={self.limit:g} is out of range: allowed is a fraction above 0, up to 1")
        if self.memory is not None and not 0 < self.memory < 1 << 62:
            raise Refused(f"{where}: memory={self.memory} is out of range: allowed is a size above 0, for example 8GiB")
        if self.max_clients is not None and self.max_clients < 0:
            raise Refused(f"{where}: max_clients={self.max_clients} is out of range: allowed is 0 or more")
        for level, count in self.cells.items():
            if level not in LEVELS:
                raise Refused(f"{where}: unknown cell level {level!r}: allowed are {', '.join(LEVELS)}")
            if count < 0:
                raise Refused(f"{where}: cells {level}={count!r} is out of range: allowed is a whole number from 0 on")

    @property
    def has_cells(self) -> bool:
        return any(self.cells.values())


class Tenants:
    """All tenants, and the use of their ceilings by clients."""

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        self.tenants = {tenant.name: tenant for tenant in tenants}
        # By tenant and client: the client's share times the number of its devices.
        self._uses: dict[str, dict[str, float]] = {name: {} for name in self.tenants}
        self._beyond_ceiling: set[str] = set()  # clients that ran already when their tenant had no further room

    def get(self, name: str) -> Tenant | None:
        return self.tenants.get(name)

    def with_ceilings(self, quota: Quota, tenant: str) -> Quota:
        """Return the quota of a new client, with ceilings in place of the values that it did not ask for."""
        known = self.tenants.get(tenant)
        if known is None:
            return quota
        memory = known.memory if quota.memory is None else quota.memory
        limit = quota.limit if quota.limit < 1 else max(known.limit, quota.share)
        return replace(quota, memory=memory, limit=limit)

    def apply_ceilings(self, quota: Quota, tenant: str) -> Quota:
        """Return the quota of a client that must not be refused: within the ceilings of one client, without a share."""
        return self.reduce_to_ceiling(replace(quota, share=0.0), tenant)

    def reduce_to_ceiling(self, quota: Quota, tenant: str) -> Quota:
        """Return a quota that no user asked for, reduced to the ceilings of one client."""
        known = self.tenants.get(tenant)
        limit = quota.limit if known is None else min(quota.limit, max(known.limit, quota.share))
        return self.cap_memory(replace(quota, limit=limit), tenant)

    def cap_memory(self, quota: Quota, tenant: str) -> Quota:
        """Return the quota with no more memory than the ceiling."""
        known = self.tenants.get(tenant)
        if known is None or known.memory is None:
            return quota
        return replace(quota, memory=min(quota.memory or known.memory, known.memory))

    def check(self, client: str, tenant: str, quota: Quota, gpus: int) -> None:
        """Check the client's quota against the ceilings. Raises Refused with the figures and the allowed values."""
        known = self.tenants.get(tenant)
        if known is None:
            return
        where = f"tenant {tenant!r}"
        others = [use for other, use in self._uses[tenant].items() if other != client]
        if known.max_clients is not None and client not in self._uses[tenant] and len(others) >= known.max_clients:
            raise (CeilingReached if known.max_clients else AboveCeiling)(
                f"{where} has {len(others)} clients: allowed are {known.max_clients}; end one of them first"
            )
        if quota.limit > known.limit:
            raise AboveCeiling(f"limit={quota.limit:g} is above that of {where}: allowed is up to {known.limit:g}")
        if known.memory is not None and (quota.memory is None or quota.memory > known.memory):
            asked = "all of the device's memory" if quota.memory is None else f"memory={size_word(quota.memory)}"
            raise AboveCeiling(
                f"{asked} is above that of {where}: allowed is up to {format_size(known.memory, math.floor)}"
            )
        if known.share is not None and quota.share:
            taken = sum(others)
            if taken + quota.share * gpus > known.share + 1e-9:
                left = max(0.0, known.share - taken) / gpus
                fits_alone = quota.share * gpus <= known.share + 1e-9
                raise (CeilingReached if fits_alone else AboveCeiling)(
                    f"share={quota.share:g} of {gpus} device{'s' if gpus > 1 else ''} is above what {where} has left: "
                    f"{taken:g} of {known.share:g} are taken, allowed is up to {left:g}"
                )

    def check_online(self, client: str, tenant: str) -> None:
        """Check that an offline client may become online. Raises Refused if its tenant has its number of clients."""
        known = self.tenants.get(tenant)
        if known is None or known.max_clients is None or client not in self._beyond_ceiling:
            return
        if self._count_within_ceiling(tenant) >= known.max_clients:
            raise PlacementFailed(
                f"tenant {tenant!r} has {len(self._uses[tenant])} clients: allowed are {known.max_clients}, "
                "and this client exceeds that number: it stays offline until another client ends"
            )

    def has_share(self, client: str, tenant: str, share: float, gpus: int) -> bool:
        """Return whether the client's guaranteed share on so many devices is within the tenant's ceiling."""
        known = self.tenants.get(tenant)
        if known is None or known.share is None or not share:
            return True
        taken = sum(use for other, use in self._uses[tenant].items() if other != client)
        return taken + share * gpus <= known.share + 1e-9

    def add(self, client: str, tenant: str, share: float, gpus: int) -> None:
        if tenant not in self._uses:
            return
        limit = self.tenants[tenant].max_clients
        if client not in self._uses[tenant] and limit is not None and self._count_within_ceiling(tenant) >= limit:
            self._beyond_ceiling.add(client)
        self._uses[tenant][client] = share * gpus

    def _count_within_ceiling(self, tenant: str) -> int:
        return sum(client not in self._beyond_ceiling for client in self._uses[tenant])

    def remove(self, client: str) -> None:
        self._beyond_ceiling.discard(client)
        for uses in self._uses.values():
            uses.pop(client, None)

    def guarantees(self) -> dict[str, Mapping[str, int]]:
        return {name: tenant.cells for name, tenant in self.tenants.items() if tenant.has_cells}


def tenant_from_mapping(name: str, values: Mapping[str, Any]) -> Tenant:
    """Return the tenant from `{"share": …, "limit": …, "memory": bytes, "max_clients": …, "cells": {…}}`.

    Raises Refused.
    """
    for key in values:
        if key not in KEYS:
            raise Refused(f"tenant {name!r}: unknown key {key!r}: allowed are users, groups, {', '.join(KEYS)}")
    for key in ("share", "limit"):
        if key in values and (isinstance(values[key], bool) or not isinstance(values[key], int | float)):
            raise Refused(f"tenant {name!r}: {key}={values[key]!r} is no number")
    for key in ("memory", "max_clients"):
        if key in values and (isinstance(values[key], bool) or not isinstance(values[key], int)):
            raise Refused(f"tenant {name!r}: {key}={values[key]!r} is no whole number")
    if not isinstance(values.get("cells", {}), Mapping):
        raise Refused(
            f"tenant {name!r}: cells={values['cells']!r} is not an object: allowed is for example {{'socket': 1}}"
        )
    for level, count in values.get("cells", {}).items():
        if isinstance(count, bool) or not isinstance(count, int):
            raise Refused(f"tenant {name!r}: cells {level}={count!r} is no whole number")
    return Tenant(name, **values)
