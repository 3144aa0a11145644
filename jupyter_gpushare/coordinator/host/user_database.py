"""Names and groups of users in the host's user database, and the users of processes."""

from __future__ import annotations

import functools
import grp
import logging
import os
import pwd
import time
from typing import NamedTuple

_MAX_CACHED_USERS = 4096

log = logging.getLogger(__name__)


class UserAccount(NamedTuple):
    """Names of a user in the settings (uid and user name), and the names and gids of its groups."""

    names: tuple[str, ...]
    groups: tuple[str, ...]


_UNKNOWN_RETRY_SECONDS = 10.0  # until the next query for an unknown user, because the database may have been offline
_unknown: dict[str, float] = {}  # time of the last failed query, by user


def user_account(user: str) -> UserAccount:
    """Return the account of a user, given as uid or name. An unknown user has no groups.

    A known user is queried once, so new groups count after the next start of the coordinator. An unknown user is
    queried again, because a directory service that hangs for a moment must not lift the user's ceilings for good.
    """
    now = time.monotonic()
    if now - _unknown.get(user, -_UNKNOWN_RETRY_SECONDS) >= _UNKNOWN_RETRY_SECONDS:
        try:
            return _look_up(user)
        except (KeyError, ValueError, OverflowError, OSError) as error:
            log.info("using no groups for user %s: %s", user, error)
        if len(_unknown) >= _MAX_CACHED_USERS:
            _unknown.clear()
        _unknown[user] = now
    return UserAccount((user,), ())


@functools.lru_cache(maxsize=_MAX_CACHED_USERS)
def _look_up(user: str) -> UserAccount:
    """Query the database. Errors are raised and not cached."""
    entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    groups: list[str] = []
    for gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
        groups.append(str(gid))
        try:
            groups.append(grp.getgrgid(gid).gr_name)
        except (KeyError, OSError) as error:
            log.info("using only the number of a group of user %s: group %d has no name: %s", user, gid, error)
    return UserAccount(tuple(dict.fromkeys((user, str(entry.pw_uid), entry.pw_name))), tuple(groups))


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


@functools.lru_cache(maxsize=_MAX_CACHED_USERS)
def _name_of_uid(uid: int) -> str:
    """Return the cached user name of a uid, because snapshots use it often and the database may be remote.

    Raises KeyError, which is not cached.
    """
    return pwd.getpwuid(uid).pw_name
