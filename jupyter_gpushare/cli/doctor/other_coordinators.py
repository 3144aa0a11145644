"""Checks of `jupyter gpushare doctor` on other coordinators of this host, and on processes that lock a device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...wire import address
from .finding import Finding

_SYSTEM_REMEDY = "run one coordinator for all users, 'jupyter gpushare coordinator --system' (docs/how-to/multiuser.md)"


def coordinators(socket: str) -> Iterator[Finding]:
    """Yield a finding for coordinators of several users, whose clients can share a device only turn by turn."""
    try:
        path = address.socket_path(socket)
    except address.BadAddress:
        return  # The check of the coordinator reports this error.
    users = coordinator_owners()
    if path != address.SYSTEM_SOCKET and len(users) > 1:
        message = (
            f"coordinators of {len(users)} users run on this host, so their clients take turns on a GPU in no order, "
            "one quantum at a time"
        )
        yield Finding("warning", "other coordinators", message, _SYSTEM_REMEDY)


def coordinator_owners() -> set[int]:
    """Return the users whose coordinators run on this host, as far as this process can see their processes."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"coordinator" in words and any(b"gpushare" in word for word in words[: words.index(b"coordinator")]):
                found.add(folder.stat().st_uid)
        except OSError:  # The process has ended.
            continue
    return found


def lock_holders(status: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each device of a snapshot that a foreign process has locked."""
    for device in status["devices"]:
        if locked := device.get("locked_by"):
            holders = ", ".join(f"pid {one['pid']}{' of ' + one['user'] if one['user'] else ''}" for one in locked)
            name = device["name"] or device["uuid"]
            message = f"{name} is locked by {holders}, so no client of this coordinator can use the device meanwhile"
            remedy = f"wait, if a client of another coordinator has a turn there; {_SYSTEM_REMEDY}"
            yield Finding("warning", "other coordinators", message, remedy)
