"""What is counted of use, and of whose."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

HOUR = 3600.0


class Owner(NamedTuple):
    """Whose use it is, and of which device; `tenant` is one of the settings or ""."""

    user: str
    tenant: str
    device: str


class Key(NamedTuple):
    """`hour`: of the wall clock, since 1970."""

    hour: int
    owner: Owner


@dataclass
class Tally:
    """What somebody has used of a device. What a client does with several devices at the same time counts on each, but
    for bytes: of these each has an equal part."""

    gpu_seconds: float = 0.0  # had the device
    busy_seconds: float = 0.0  # of these, had work there, as its processes estimate it
    wait_seconds: float = 0.0
    waits: int = 0
    turns: int = 0
    evicted_bytes: int = 0
    restored_bytes: int = 0

    def add(self, other: Tally) -> None:
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in _NAMES)

    def part(self, fraction: float) -> Tally:
        """Of the seconds; what can only be counted stays whole, with what is left."""
        return Tally(**{name: getattr(self, name) * fraction for name in _NAMES if name.endswith("_seconds")})

    def less(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) - getattr(other, name) for name in _NAMES))


_NAMES = [one.name for one in fields(Tally)]
