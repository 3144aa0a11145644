"""What is counted of use, and of whose."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

HOUR_SECONDS = 3600.0


class UsageOwner(NamedTuple):
    """Whose use it is, and of which device; `tenant` is one of the settings or ""."""

    user: str
    tenant: str
    device: str


class UsageKey(NamedTuple):
    """`hour`: of the wall clock, since 1970."""

    hour: int
    owner: UsageOwner


@dataclass
class UsageTotals:
    """What somebody has used of a device. What a client does with several devices at the same time counts on each, but
    for bytes: of these each has an equal part."""

    gpu_seconds: float = 0.0  # had the device
    busy_seconds: float = 0.0  # of these, had work there, as its processes estimate it
    wait_seconds: float = 0.0
    waits: int = 0
    turns: int = 0
    evicted_bytes: int = 0
    restored_bytes: int = 0

    def add(self, other: UsageTotals) -> None:
        for name in _FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in _FIELDS)

    def scaled(self, fraction: float) -> UsageTotals:
        """Of the seconds; what can only be counted stays whole, with what is left."""
        return UsageTotals(**{name: getattr(self, name) * fraction for name in _FIELDS if name.endswith("_seconds")})

    def minus(self, other: UsageTotals) -> UsageTotals:
        return UsageTotals(*(getattr(self, name) - getattr(other, name) for name in _FIELDS))


_FIELDS = [one.name for one in fields(UsageTotals)]
