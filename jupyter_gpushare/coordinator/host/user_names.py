"""Names of users."""

from __future__ import annotations

import functools
import os
import pwd


def user_name(user: str) -> str:
    """The user name of a uid, or the uid where it has none here."""
    try:
        return _name_of_uid(int(user))
    except (KeyError, ValueError):
        return user


def process_user(pid: int) -> str | None:
    """Who runs that process; None: there is no process of that id here."""
    try:
        return user_name(str(os.stat(f"/proc/{pid}").st_uid))
    except OSError:
        return None


@functools.lru_cache(maxsize=4096)
def _name_of_uid(uid: int) -> str:
    """Asked for with every snapshot, of a database that may be elsewhere. Raises KeyError, which is not remembered."""
    return pwd.getpwuid(uid).pw_name
