"""A client's quota on the pages of its processes, where a coordinator that comes later finds it."""

from __future__ import annotations

from typing import Any

from ...core.base.errors import Refused
from ...core.base.quota import Quota
from ...core.state.model import Client

# Bits of orders.quota_set, see page.h.
_SET, _MEMORY, _OFFLINE, _RESIDENT, _SUSPENDED, _IDLE = 1, 2, 4, 8, 16, 32


def decode_quota(orders: Any) -> Quota | None:
    """The quota in the `orders` of a page; None: none that is one has been written there."""
    if not orders.quota_set & _SET:
        return None
    try:
        return Quota(
            share=orders.share_ppm / 1e6,
            limit=orders.limit_ppm / 1e6,
            memory=orders.memory_limit if orders.quota_set & _MEMORY else None,
            resident=orders.resident_quota if orders.quota_set & _RESIDENT else None,
            service="offline" if orders.quota_set & _OFFLINE else "online",
        )
    except Refused:
        return None


def is_suspended(orders: Any) -> bool:
    """By a person."""
    return bool(orders.quota_set & _SUSPENDED)


def is_suspended_by_policy(orders: Any) -> bool:
    """For being idle. A coordinator that doesn't know that lets it take part, as its next cell would."""
    return bool(orders.quota_set & _IDLE)


def encode_quota(orders: Any, client: Client, device_memory: int) -> None:
    """The client's quota and whether it is suspended; without a `memory` of its own it may have all of its devices."""
    quota = client.quota
    orders.memory_limit = quota.memory or device_memory
    orders.share_ppm = round(quota.share * 1_000_000)
    orders.limit_ppm = round(quota.limit * 1_000_000)
    orders.resident_quota = quota.resident or 0
    orders.quota_set = (
        _SET
        | (_MEMORY if quota.memory is not None else 0)
        | (_OFFLINE if quota.service == "offline" else 0)
        | (_RESIDENT if quota.resident is not None else 0)
        | (_SUSPENDED if client.suspended_by_user else 0)
        | (_IDLE if client.suspended_by_policy else 0)
    )
