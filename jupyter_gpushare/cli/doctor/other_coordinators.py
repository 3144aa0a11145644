"""Checks of `jupyter gpushare doctor` on others of this host: their coordinators, and who keeps a device from ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...wire import address
from .finding import Finding

_SYSTEM_REMEDY = "run one coordinator for all users, 'jupyter gpushare coordinator --system' (docs/how-to/multiuser.md)"


def coordinators(socket: str) -> Iterator[Finding]:
    """Other users' coordinators share devices with ours only turn by turn."""
    try:
        ours = address.socket_path(socket)
    except address.BadAddress:
        return  # told by the check of the coordinator
    users = coordinator_owners()
    if ours != address.SYSTEM_SOCKET and len(users) > 1:
        what = f"coordinators of {len(users)} users run here: a GPU passes between them one quantum at a time"
        yield Finding("warning", "other coordinators", f"{what}, in no order", _SYSTEM_REMEDY)


def coordinator_owners() -> set[int]:
    """The users whose coordinators run here, as far as their processes can be seen."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"coordinator" in words and any(b"gpushare" in word for word in words[: words.index(b"coordinator")]):
                found.add(folder.stat().st_uid)
        except OSError:  # it has ended
            continue
    return found


def lock_holders(status: dict[str, Any]) -> Iterator[Finding]:
    """Of a snapshot: devices that somebody else has locked."""
    for device in status["devices"]:
        if locked := device.get("locked_by"):
            who = ", ".join(f"pid {one['pid']}{' of ' + one['user'] if one['user'] else ''}" for one in locked)
            what = f"{device['name'] or device['uuid']} is locked by {who}: no client here can have it meanwhile"
            advice = f"if that is the turn of another coordinator's client, it ends; {_SYSTEM_REMEDY}"
            yield Finding("warning", "other coordinators", what, advice)
