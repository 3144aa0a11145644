"""Quotas: what a client asks for and may use."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ...settings.quota import check
from .errors import Refused


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
        """Raises Refused."""
        try:
            check(vars(self))
        except ValueError as error:
            raise Refused(str(error)) from None

    def with_changes(self, changes: dict[str, Any]) -> Quota:
        """This quota with some fields replaced. Raises Refused on an unknown key or a value out of range."""
        known = [field.name for field in fields(self)]
        for key in changes:
            if key not in known:
                raise Refused(f"unknown quota key {key!r}: allowed are {', '.join(known)} (or class)")
        return replace(self, **changes)
