"""Parsing of the options of a client's quota and placement, and of later changes of the quota."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import units
from ...core.base.errors import Refused
from ...core.base.quota import Quota
from ...core.placement import OPTION_NAMES, PlacementRequest
from .live_settings import parse_quota


def parse_request(options: str, default: Quota, gpus: int = 1) -> tuple[Quota, PlacementRequest]:
    """Parse options such as `share=0.5 memory=0.25 affinity=pair` into a quota and a placement request.

    `default` has the values of absent options. Raises Refused with the wrong option and the allowed values.
    """
    try:
        pairs: dict[str, Any] = dict(units.parse_pairs(options))
    except ValueError as error:
        raise Refused(f"quota: {error}") from None
    placement = {word: pairs.pop(word) for word in OPTION_NAMES if word in pairs}
    fraction = parse_fraction_of(pairs)
    if parse_fraction_of(pairs, "resident") is not None:
        # A fraction needs the size of the client's devices, which are not known yet.
        raise Refused(
            f"resident={pairs['resident']}: at the start of a client allowed is a size such as 2GiB; "
            "set a fraction while the client runs"
        )
    known = {name: value for name, value in pairs.items() if fraction is None or name != "memory"}
    quota = default.with_changes(parse_quota(known))
    return quota, PlacementRequest.from_options(placement, gpus=gpus, fraction=fraction)


def parse_fraction_of(options: Mapping[str, Any], key: str = "memory") -> float | None:
    """Return the option as a fraction of the devices' memory, or None if it is absent or a size. Raises Refused."""
    value = options.get(key)
    if value is None or not units.is_fraction(value):
        return None
    fraction = units.parse_fraction(value)
    if not 0 < fraction <= 1:
        raise Refused(f"{key}={value} is out of range: allowed is a fraction above 0 and up to 1, or a size")
    return fraction


def parse_changes(changes: Mapping[str, Any], capacity: int) -> dict[str, Any]:
    """Parse changes of a running client's quota, on devices of `capacity` bytes in all. Raises Refused."""
    for word in changes:
        if word in OPTION_NAMES:
            raise Refused(
                f"{word} is a placement option, which counts only at the start of a client: "
                "allowed for a running client are quota keys"
            )
    fractions = {key: parse_fraction_of(changes, key) for key in ("memory", "resident")}
    sizes = {key: max(1, round(fraction * capacity)) for key, fraction in fractions.items() if fraction is not None}
    return parse_quota({**changes, **sizes})
