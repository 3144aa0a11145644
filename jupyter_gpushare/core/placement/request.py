"""Placement request of a client: number of devices, share, memory and labels, with checks and text forms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...settings.quota import check
from ...units import size_word
from ..base.errors import Refused
from ..base.quota import Quota

MAX_DEVICES = 64
LABEL_NAMES = ("affinity", "anti_affinity", "exclusion")
OPTION_NAMES = ("device", *LABEL_NAMES)  # options of a quota that concern only placement

_MIN_PART_LENGTH = 3  # characters of a part of a name, because single letters are in the names of most devices
_LABEL = re.compile(r"[\w.:@-]{1,64}\Z")


@dataclass(frozen=True)
class PlacementRequest:
    """Devices as a client asks for them.

    `share`: the guaranteed fraction of each device's time. `memory`: bytes on all of its devices together. `fraction`:
    the fraction of each device's memory, instead of `memory`. `movable` memory may exceed the device together with the
    memory of other clients. `devices`: the devices to choose from, each by UUID (or its beginning), index or name.

    Labels are KubeShare's (Yeh, Chen, Chou, "KubeShare", HPDC'20). Clients with the same `affinity` share a device, and
    clients with the same `anti_affinity` do not. A client with an `exclusion` shares devices only with clients of the
    same exclusion.
    """

    gpus: int = 1
    share: float = 0.0
    memory: int | None = None
    fraction: float | None = None
    service: str = "online"
    devices: tuple[str, ...] = ()
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""
    movable: bool = True

    def __post_init__(self) -> None:
        """Check the values. Raises Refused with the field and the allowed values."""
        if not 1 <= self.gpus <= MAX_DEVICES:
            raise Refused(f"gpus={self.gpus} is out of range: allowed are 1 to {MAX_DEVICES}")
        if self.memory is not None and self.fraction is not None:
            raise Refused("memory is given both in bytes and as a fraction: allowed is one of them")
        if self.fraction is not None and (not math.isfinite(self.fraction) or not 0 < self.fraction <= 1):
            raise Refused(f"memory={self.fraction:g} is out of range: allowed is a fraction above 0 and up to 1")
        try:
            check({"share": self.share, "memory": self.memory, "service": self.service})
        except ValueError as error:
            raise Refused(str(error)) from None
        for name in LABEL_NAMES:
            value = getattr(self, name)
            if value and not _LABEL.match(value):
                raise Refused(f"{name}={value!r} is no label: allowed are 1 to 64 letters, digits and any of _ . : @ -")
        if self.affinity and self.affinity == self.anti_affinity:
            raise Refused(f"affinity and anti_affinity are both {self.affinity!r}: allowed are different labels")

    @classmethod
    def from_options(cls, options: Mapping[str, str], **known: Any) -> PlacementRequest:
        """Return the request for the placement words of a quota; `known` are fields that have been read already.

        `device` takes several devices, joined by `+`. Raises Refused for an unknown word or a value out of range.
        """
        for word in options:
            if word not in OPTION_NAMES:
                raise Refused(f"unknown placement word {word!r}: allowed are {', '.join(OPTION_NAMES)}")
        labels: dict[str, Any] = {name: options[name] for name in LABEL_NAMES if name in options}
        devices = tuple(part.strip() for part in options.get("device", "").split("+")) if "device" in options else ()
        if not all(devices):
            raise Refused(
                f"device={options['device']!r} is no device: allowed are a UUID, an index or a name, "
                "or several of them joined by +"
            )
        return cls(devices=devices, **labels, **known)

    def with_quota(self, quota: Quota) -> PlacementRequest:
        """Return the request with the share, the memory and the class of service of the quota."""
        memory = quota.memory if self.fraction is None else None
        return replace(self, share=quota.share, memory=memory, service=quota.service)

    def __str__(self) -> str:
        """Return the request for each device as a text for users."""
        words = [f"share={self.share:g}"] if self.share else []
        if self.fraction is not None:
            words.append(f"memory={self.fraction:g}")
        if self.memory is not None:
            words.append(f"memory={size_word(self.memory)}")
        return " ".join([*words, *(f"{word}={value}" for word, value in self.to_options().items())]) or "a client"

    def to_options(self) -> dict[str, str]:
        """Return the placement words that give this request."""
        made = {name: getattr(self, name) for name in LABEL_NAMES}
        return {word: value for word, value in {"device": "+".join(self.devices), **made}.items() if value}

    def bytes_on(self, memory: int) -> int:
        """Return the bytes that the client asks for on a device of `memory` bytes; 0: it gives no figure."""
        if self.fraction is not None:
            return round(self.fraction * memory)
        return 0 if self.memory is None else -(-self.memory // self.gpus)

    def total_bytes(self, memories: tuple[int, ...]) -> int | None:
        """Return the bytes that the client may allocate on devices of these sizes; None: no bound of its own."""
        return sum(round(self.fraction * memory) for memory in memories) if self.fraction is not None else self.memory

    def size_on(self, memory: int) -> float:
        """Return the fraction of a device of `memory` bytes that the client takes, of its time or of its memory.

        The larger fraction counts.
        """
        memory_fraction = self.bytes_on(memory) / memory if memory else (self.fraction or 0.0)
        return max(self.share, min(1.0, memory_fraction))


def match_devices(word: str, devices: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the UUIDs of `devices` (UUID, index, name) that a user names by one word.

    The word is a UUID, else an index, else the beginning of a UUID, else a part of a name. A word of digits only is no
    part of a name. A part of a name has at least three characters, or is a whole word of the name, such as "L4".
    """
    match = [uuid for uuid, _, _ in devices if uuid == word]
    match = match or [uuid for uuid, index, _ in devices if index == word]
    match = match or [uuid for uuid, _, _ in devices if len(word) >= 4 and uuid.startswith(word)]
    return match or [uuid for uuid, _, name in devices if _is_part_of_name(word.lower(), name.lower())]


def _is_part_of_name(word: str, name: str) -> bool:
    return not word.isdigit() and (word in name.split() or (len(word) >= _MIN_PART_LENGTH and word in name))
