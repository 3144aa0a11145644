"""Names of users."""

from __future__ import annotations

import functools
import os
import pwd


def user_name(user: str) -> str:
    """Return the user name of a uid, or the uid if it has no name."""
    try:
        return _name_of_uid(int(user))
    except (KeyError, ValueError):
        return user


def process_user(pid: int) -> str | None:
    """Return the user name of a process, or None without a process of that pid."""
    try:
        return user_name(str(os.stat(f"/proc/{pid}").st_uid))
    except OSError:
        return None


@functools.lru_cache(maxsize=4096)
def _name_of_uid(uid: int) -> str:
    """Return the cached user name of a uid, because snapshots use it often and the database may be remote.

    Raises KeyError, which is not cached.
    """
    return pwd.getpwuid(uid).pw_name
