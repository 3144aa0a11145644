"""Quotas: what a client asks for and may use."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from .errors import Refused

SERVICE_CLASSES = ("online", "offline")


@dataclass(frozen=True)
class Quota:
    """A client's quota.

    `share` is the fraction of time that is guaranteed, `limit` the largest fraction it may take, both in 0…1;
    `memory` the bytes it may allocate and `resident` the bytes it may keep on the device while others wait (None:
    no bound of its own); `service` its service class.
    """

    share: float = 0.0
    limit: float = 1.0
    memory: int | None = None
    resident: int | None = None
    service: str = "online"

    def __post_init__(self) -> None:
        for name in ("share", "limit"):
            value = getattr(self, name)
            if not math.isfinite(value) or not 0 <= value <= 1:
                raise Refused(f"{name}={value:g} is out of range: allowed is a fraction from 0 to 1")
        if self.limit < 0.001:
            raise Refused(f"limit={self.limit:g} would never let it run: allowed is a fraction from 0.001 to 1")
        if self.share > self.limit:
            raise Refused(f"share={self.share:g} is above limit={self.limit:g}: allowed is a share up to the limit")
        for name in ("memory", "resident"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1 << 62:
                raise Refused(f"{name}={value} is out of range: allowed is a size above 0, for example 8GiB")
        if self.service not in SERVICE_CLASSES:
            raise Refused(f"service={self.service!r} is unknown: allowed are {', '.join(SERVICE_CLASSES)}")

    def changed(self, changes: dict[str, Any]) -> Quota:
        """This quota with some fields replaced. Raises Refused on an unknown key or a value out of range."""
        known = [field.name for field in fields(self)]
        for key in changes:
            if key not in known:
                raise Refused(f"unknown quota key {key!r}: allowed are {', '.join(known)} (or class)")
        return replace(self, **changes)
