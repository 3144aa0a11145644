"""Identification of a peer's user and admin rights by uid, socket or cgroup.

No message of the peer counts for the identification. An admin may change all clients and settings, another user only
its own clients.
"""

from __future__ import annotations

import errno
import os
import re
import select
import socket
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ...config.traits import GpuShare
from ...core.base.errors import Refused
from ..host.cgroups import parse_memberships
from ..host.user_database import user_account

UID, SOCKET, CGROUP = "uid", "socket", "cgroup"
SO_PEERPIDFD = 77  # since Linux 6.5; the socket module has no name for it

_CREDENTIALS = struct.Struct("iII")  # struct ucred


class Identity(NamedTuple):
    """User and admin rights of a peer, and its process as Linux reports it."""

    user: str
    admin: bool
    pid: int
    uid: int


class IdentificationFailed(PermissionError):
    """Error for a peer whose user cannot be identified; the message has the reason."""


class PeerIdentifier:
    """Identifier of the peers of one coordinator, by the settings `identity`, `admins` and `admin_groups`."""

    def __init__(self, traits: GpuShare) -> None:
        """Check the settings. Raises Refused if Linux is too old for the setting `identity`."""
        self._method = traits.identity
        self._admins = frozenset(traits.admins)
        self._admin_groups = frozenset(traits.admin_groups)
        self._pattern = re.compile(traits.cgroup_user)
        if self._method == CGROUP and not _has_peer_pidfd():
            raise Refused(
                "identity='cgroup' needs Linux 6.5 or newer, which can identify the process at the other end of a "
                "socket beyond its pid: allowed on this host are 'uid' and 'socket'"
            )

    def identify(self, connection: socket.socket, socket_user: str = "") -> Identity:
        """Identify the peer of a connection, which the caller has just accepted. Raises IdentificationFailed.

        `socket_user` is the user whose socket accepted the connection, or "" for the socket of all users.
        """
        pid, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        is_own = uid in (0, os.getuid())
        if socket_user:
            return Identity(socket_user, self._is_listed_admin(socket_user), pid, uid)
        if self._method == CGROUP:
            group = peer_cgroup(connection, pid)
            if is_own and group == own_cgroup():  # an admin's shell in the coordinator's container
                return Identity(str(uid), True, pid, uid)
            user = user_from_cgroup(group, self._pattern)
            return Identity(user, self._is_listed_admin(user), pid, uid)
        return Identity(str(uid), is_own or self._is_listed_admin(str(uid)), pid, uid)

    def _is_listed_admin(self, user: str) -> bool:
        """Return whether the settings make the user an admin."""
        if not self._admins and not self._admin_groups:
            return False
        account = user_account(user)
        return not self._admins.isdisjoint(account.names) or not self._admin_groups.isdisjoint(account.groups)


def peer_cgroup(connection: socket.socket, pid: int) -> tuple[str, ...]:
    """Return the cgroup paths of the process at the other end, that of version 2 first. Raises IdentificationFailed.

    The peer may have ended, and `pid` may belong to another process by now. So the paths count only if a pidfd of the
    peer shows that the peer still runs after the read: while it runs, no other process has its pid.
    """
    try:
        pidfd = _peer_pidfd(connection)
    except OSError as error:
        raise IdentificationFailed(f"process {pid} has ended ({error.strerror}): connect again") from error
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
        has_ended = bool(select.select([pidfd], [], [], 0)[0])
    except OSError as error:
        raise IdentificationFailed(
            f"the cgroup of process {pid} cannot be read ({error.strerror}): "
            "the coordinator must see the processes of its users (hostPID in Kubernetes, no hidepid)"
        ) from error
    finally:
        os.close(pidfd)
    if has_ended:
        raise IdentificationFailed(f"process {pid} has ended: connect again")
    return cgroup_paths(text)


def own_cgroup() -> tuple[str, ...]:
    return cgroup_paths(Path("/proc/self/cgroup").read_text())


def cgroup_paths(text: str) -> tuple[str, ...]:
    """Return the paths in the text of /proc/PID/cgroup: that of version 2 first, then those of version 1."""
    memberships = parse_memberships(text)
    return tuple(one.path for one in sorted(memberships, key=lambda one: (one.hierarchy != "0", one.controllers)))


def user_from_cgroup(groups: Iterable[str], pattern: re.Pattern[str]) -> str:
    """Return the user in the first path that names one. Raises IdentificationFailed.

    In a path, the match nearest to the root counts, because the user may have created the levels below.
    """
    groups = tuple(groups)
    for path in groups:
        if match := pattern.search(path):
            return next((group for group in match.groups() if group), match.group())
    raise IdentificationFailed(
        f"the cgroup {groups[0] if groups else '(none)'} names no user: c.GpuShare.cgroup_user must match the cgroup"
    )


def open_peer_pidfd(connection: socket.socket, pid: int) -> int:
    """Open a pidfd of the process at the other end, whose pid was `pid`. Raises OSError.

    Before Linux 6.5, the pidfd is that of the process that has the pid now.
    """
    try:
        return _peer_pidfd(connection)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    return os.pidfd_open(pid)


def _peer_pidfd(connection: socket.socket) -> int:
    return int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4), sys.byteorder)


def _has_peer_pidfd() -> bool:
    one, other = socket.socketpair()
    with one, other:
        try:
            os.close(_peer_pidfd(one))
        except OSError as error:
            return error.errno not in (errno.ENOPROTOOPT, errno.EINVAL)
    return True
