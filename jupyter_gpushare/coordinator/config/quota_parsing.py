"""What a client's quota words ask for: a quota, and devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import units
from ...core.base.errors import Refused
from ...core.base.quota import Quota
from ...core.placement import OPTION_NAMES, PlacementRequest
from .live_settings import parse_quota


def parse_request(words: str, default: Quota, gpus: int = 1) -> tuple[Quota, PlacementRequest]:
    """`share=0.5 memory=0.25 affinity=pair` as a quota, with `default` for what is not said, and a request.

    Raises Refused, naming what is wrong and what is allowed.
    """
    try:
        pairs: dict[str, Any] = dict(units.parse_pairs(words))
    except ValueError as error:
        raise Refused(f"quota: {error}") from None
    placement = {word: pairs.pop(word) for word in OPTION_NAMES if word in pairs}
    fraction = parse_fraction_of(pairs)
    if parse_fraction_of(pairs, "resident") is not None:
        # Which device it is a part of is known as soon as the client has one.
        raise Refused(
            f"resident={pairs['resident']}: at the start allowed is a size, for example 2GiB; later a part too"
        )
    known = {name: value for name, value in pairs.items() if fraction is None or name != "memory"}
    quota = default.with_changes(parse_quota(known))
    return quota, PlacementRequest.from_options(placement, gpus=gpus, fraction=fraction)


def parse_fraction_of(words: Mapping[str, Any], key: str = "memory") -> float | None:
    """The part of its devices' memory that is asked for, if that is how it is said. Raises Refused."""
    value = words.get(key)
    if value is None or not units.is_fraction(value):
        return None
    fraction = units.parse_fraction(value)
    if not 0 < fraction <= 1:
        raise Refused(f"{key}={value} is out of range: allowed is a fraction above 0 and up to 1, or a size")
    return fraction


def parse_changes(changes: Mapping[str, Any], capacity: int) -> dict[str, Any]:
    """Changes of a client's quota while it runs, on devices of `capacity` bytes in all. Raises Refused."""
    for word in changes:
        if word in OPTION_NAMES:
            raise Refused(f"{word} is about where a client starts: allowed for a running one are quota keys")
    parts = {key: parse_fraction_of(changes, key) for key in ("memory", "resident")}
    sizes = {key: max(1, round(part * capacity)) for key, part in parts.items() if part is not None}
    return parse_quota({**changes, **sizes})
