"""Device memory of a client or a process, in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of device memory: allocated, the resident part of it, and the unmovable part of the resident memory.

    `unbacked` is the part of the unmovable memory that stays only because the host has no memory for it.
    `context` is the context memory, another part of the unmovable memory, which no quota counts.
    `unmade` is the part of the allocated memory for which neither device nor host has memory yet.
    `unmet` is what the client has asked for and a device has no room for.
    """

    allocated: int = 0
    resident: int = 0
    unmovable: int = 0
    unbacked: int = 0
    context: int = 0
    unmade: int = 0
    unmet: int = 0

    @property
    def movable(self) -> int:
        """Bytes on the device that can leave it."""
        return self.resident - self.unmovable

    @property
    def missing_bytes(self) -> int:
        """Bytes that need room on the device before the client can work."""
        return self.allocated - self.resident

    @property
    def evicted_bytes(self) -> int:
        """Bytes that have left the device for the host."""
        return self.missing_bytes - self.unmade

    @property
    def has_resident_allocations(self) -> bool:
        return self.resident > self.context

    def part(self, count: int) -> MemoryUse:
        """Return one of `count` equal parts. Bytes that the client has asked for count in full."""
        return MemoryUse(
            self.allocated // count,
            self.resident // count,
            self.unmovable // count,
            self.unbacked // count,
            self.context // count,
            self.unmade // count,
            self.unmet,
        )

    def plus(self, other: MemoryUse) -> MemoryUse:
        return MemoryUse(
            self.allocated + other.allocated,
            self.resident + other.resident,
            self.unmovable + other.unmovable,
            self.unbacked + other.unbacked,
            self.context + other.context,
            self.unmade + other.unmade,
            self.unmet + other.unmet,
        )


NO_MEMORY = MemoryUse()
