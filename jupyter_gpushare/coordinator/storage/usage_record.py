"""Records of usage and their owners."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

HOUR_SECONDS = 3600.0


class UsageOwner(NamedTuple):
    """User, tenant and device of a usage; `tenant` is "" for a user without a tenant."""

    user: str
    tenant: str
    device: str


class UsageKey(NamedTuple):
    """Hour and owner of a usage; `hour` counts from 1970 by the wall clock."""

    hour: int
    owner: UsageOwner


@dataclass
class UsageTotals:
    """Usage of a device. A client with several devices counts on each device, with an equal part of the bytes."""

    gpu_seconds: float = 0.0  # with the device granted
    busy_seconds: float = 0.0  # busy time, as the processes estimate it
    wait_seconds: float = 0.0
    waits: int = 0
    turns: int = 0
    evicted_bytes: int = 0
    restored_bytes: int = 0
    orphans: int = 0  # kernels that ended because no Jupyter server had adopted them, each on one device

    def add(self, other: UsageTotals) -> None:
        for name in _FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in _FIELDS)

    def scaled(self, fraction: float) -> UsageTotals:
        """Return a fraction of the seconds; counts cannot be divided and are 0 in the result."""
        return UsageTotals(**{name: getattr(self, name) * fraction for name in _FIELDS if name.endswith("_seconds")})

    def minus(self, other: UsageTotals) -> UsageTotals:
        return UsageTotals(*(getattr(self, name) - getattr(other, name) for name in _FIELDS))


_FIELDS = [one.name for one in fields(UsageTotals)]
