"""What the host's user database says of a user: names and groups."""

from __future__ import annotations

import functools
import grp
import logging
import os
import pwd
import time
from typing import NamedTuple

_MAX_CACHED_USERS = 4096  # users that are remembered

log = logging.getLogger(__name__)


class UserAccount(NamedTuple):
    """`names`: what a user may be called in the settings, uid and name; `groups`: the names and gids of its groups."""

    names: tuple[str, ...]
    groups: tuple[str, ...]


_UNKNOWN_RETRY_SECONDS = 10.0  # seconds: the database may only have been out of reach
_unknown: dict[str, float] = {}  # when each user was looked for in vain


def user_account(user: str) -> UserAccount:
    """Of a uid as text, or a user's name. What the database doesn't know has no groups.

    It is asked once for each user that it knows: whoever joins a group belongs to it from the coordinator's next start
    on. For others it is asked again, or a directory that hangs for a moment would lift a user's ceilings for ever.
    """
    now = time.monotonic()
    if now - _unknown.get(user, -_UNKNOWN_RETRY_SECONDS) >= _UNKNOWN_RETRY_SECONDS:
        try:
            return _look_up(user)
        except (KeyError, ValueError, OverflowError, OSError) as error:
            log.info("user %s: no groups are known: %s", user, error)
        if len(_unknown) >= _MAX_CACHED_USERS:
            _unknown.clear()
        _unknown[user] = now
    return UserAccount((user,), ())


@functools.lru_cache(maxsize=_MAX_CACHED_USERS)
def _look_up(user: str) -> UserAccount:
    """Raises what the database raises; that is not remembered."""
    entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    groups: list[str] = []
    for gid in os.getgrouplist(entry.pw_name, entry.pw_gid):
        groups.append(str(gid))
        try:
            groups.append(grp.getgrgid(gid).gr_name)
        except (KeyError, OSError) as error:
            log.info("user %s: group %d has no name: %s", user, gid, error)
    return UserAccount(tuple(dict.fromkeys((user, str(entry.pw_uid), entry.pw_name))), tuple(groups))
