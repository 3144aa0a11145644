"""Quota of a client: its requests and bounds, which are checked at construction."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from ...settings.quota import check
from .errors import Refused


@dataclass(frozen=True)
class Quota:
    """A client's quota.

    `share`: the fraction of time that is guaranteed, 0 to 1. `limit`: the largest fraction of time that the client may
    run, 0 to 1. `memory`: the bytes that the client may allocate. `resident`: the bytes that the client may keep on its
    devices while other clients wait, and in mode unified in its own turns too. `service`: its class of service. None:
    no bound.
    """

    share: float = 0.0
    limit: float = 1.0
    memory: int | None = None
    resident: int | None = None
    service: str = "online"

    def __post_init__(self) -> None:
        """Check the values. Raises Refused."""
        try:
            check(vars(self))
        except ValueError as error:
            raise Refused(str(error)) from None

    def with_changes(self, changes: dict[str, Any]) -> Quota:
        """Return this quota with some fields replaced. Raises Refused for an unknown key or a value out of range."""
        known = [field.name for field in fields(self)]
        for key in changes:
            if key not in known:
                raise Refused(f"unknown quota key {key!r}: allowed are {', '.join(known)} (or class)")
        return replace(self, **changes)
