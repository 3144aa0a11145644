"""Names of users."""

from __future__ import annotations

import functools
import os
import pwd


def tenant_name(tenant: str) -> str:
    """The user name of a uid, or the uid where it has none here."""
    try:
        return _user_name(int(tenant))
    except (KeyError, ValueError):
        return tenant


def user_of(pid: int) -> str | None:
    """Who runs that process; None: there is no process of that id here."""
    try:
        return tenant_name(str(os.stat(f"/proc/{pid}").st_uid))
    except OSError:
        return None


@functools.lru_cache(maxsize=4096)
def _user_name(uid: int) -> str:
    """Asked for with every snapshot, of a database that may be elsewhere. Raises KeyError, which is not remembered."""
    return pwd.getpwuid(uid).pw_name
