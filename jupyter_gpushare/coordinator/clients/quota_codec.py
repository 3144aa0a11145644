"""Encoding of a client's quota and suspension in the pages of its processes, for a later coordinator."""

from __future__ import annotations

from typing import Any

from ...core.base.errors import Refused
from ...core.base.quota import Quota
from ...core.state.model import Client

# Bits of control.quota_flags, see page.h.
_SET, _MEMORY, _OFFLINE, _RESIDENT, _SUSPENDED, _IDLE, _GUEST = 1, 2, 4, 8, 16, 32, 64


def decode_quota(control: Any) -> Quota | None:
    """Return the quota in the control block of a page, or None without a valid one."""
    if not control.quota_flags & _SET:
        return None
    try:
        return Quota(
            share=control.share_ppm / 1e6,
            limit=control.limit_ppm / 1e6,
            memory=control.memory_limit if control.quota_flags & _MEMORY else None,
            resident=control.resident_quota if control.quota_flags & _RESIDENT else None,
            service="offline" if control.quota_flags & _OFFLINE else "online",
        )
    except Refused:
        return None


def is_suspended(control: Any) -> bool:
    """Return whether a user suspended the client, by the control block."""
    return bool(control.quota_flags & _SUSPENDED)


def is_suspended_by_policy(control: Any) -> bool:
    """Return whether the idle policy suspended the client, by the control block.

    A coordinator that ignores this flag resumes the client, as the client's next cell would.
    """
    return bool(control.quota_flags & _IDLE)


def encode_quota(control: Any, client: Client, device_memory: int) -> None:
    """Write the client's quota and suspension; without a memory quota the limit is `device_memory` bytes."""
    quota = client.quota
    control.memory_limit = quota.memory or device_memory
    control.share_ppm = round(quota.share * 1_000_000)
    control.limit_ppm = round(quota.limit * 1_000_000)
    control.resident_quota = quota.resident or 0
    control.quota_flags = (
        _SET
        | (_MEMORY if quota.memory is not None else 0)
        | (_OFFLINE if quota.service == "offline" else 0)
        | (_RESIDENT if quota.resident is not None else 0)
        | (_SUSPENDED if client.suspended_by_user else 0)
        | (_IDLE if client.suspended_by_policy else 0)
        | (_GUEST if client.is_preemptible_guest else 0)
    )
