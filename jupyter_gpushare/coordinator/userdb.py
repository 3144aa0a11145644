"""What the host's user database says of a user: names and groups."""

from __future__ import annotations

import functools
import grp
import logging
import os
import pwd
from typing import NamedTuple

log = logging.getLogger(__name__)


class Account(NamedTuple):
    """`names`: what a user may be called in the settings, uid and name; `groups`: the names and gids of its groups."""

    names: tuple[str, ...]
    groups: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def account(user: str) -> Account:
    """Of a uid as text, or a user's name. What the database doesn't know has no groups.

    It is asked once for each user: whoever joins a group belongs to it from the coordinator's next start on.
    """
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        gids = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, ValueError, OverflowError, OSError) as error:
        log.info("user %s: no groups are known: %s", user, error)
        return Account((user,), ())
    groups: list[str] = []
    for gid in gids:
        groups.append(str(gid))
        try:
            groups.append(grp.getgrgid(gid).gr_name)
        except (KeyError, OSError) as error:
            log.info("user %s: group %d has no name: %s", user, gid, error)
    return Account(tuple(dict.fromkeys((user, str(entry.pw_uid), entry.pw_name))), tuple(groups))
