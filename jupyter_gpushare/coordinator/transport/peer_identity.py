"""Who a peer is, and whether it is an admin: by its uid, the socket that it came by, or its cgroup.

What a peer says of itself counts for nothing here. An admin may change everything, everybody else only clients of
their own.
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
from ..host.user_database import user_account

UID, SOCKET, CGROUP = "uid", "socket", "cgroup"
SO_PEERPIDFD = 77  # since Linux 6.5; the socket module has no name for it

_CREDENTIALS = struct.Struct("iII")  # struct ucred


class Identity(NamedTuple):
    """Who a peer is: `user`, whose clients it may change, and its process as the kernel says."""

    user: str
    admin: bool
    pid: int
    uid: int


class IdentificationFailed(PermissionError):
    """It cannot be known who a peer is; the message says why."""


class PeerIdentifier:
    """Of one coordinator, by its settings `identity`, `admins` and `admin_groups`."""

    def __init__(self, traits: GpuShare) -> None:
        """Raises Refused when this kernel cannot tell who is who in the way that is asked for."""
        self._method = traits.identity
        self._admins = frozenset(traits.admins)
        self._admin_groups = frozenset(traits.admin_groups)
        self._pattern = re.compile(traits.cgroup_user)
        if self._method == CGROUP and not _has_peer_pidfd():
            raise Refused(
                "identity='cgroup' needs Linux 6.5 or newer, which says which process is at the other end of a socket "
                "and not only what number it had: allowed here are 'uid' and 'socket'"
            )

    def identify(self, connection: socket.socket, socket_user: str = "") -> Identity:
        """Who is at the other end. `entrance`: the user whose socket it came by; "": the socket of everybody.

        To be asked as soon as the connection is accepted. Raises Unidentified.
        """
        pid, uid, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        ours = uid in (0, os.getuid())
        if socket_user:
            return Identity(socket_user, self._is_listed_admin(socket_user), pid, uid)
        if self._method == CGROUP:
            group = peer_cgroup(connection, pid)
            if ours and group == own_cgroup():  # whoever is here already: an admin's shell beside the coordinator
                return Identity(str(uid), True, pid, uid)
            user = user_from_cgroup(group, self._pattern)
            return Identity(user, self._is_listed_admin(user), pid, uid)
        return Identity(str(uid), ours or self._is_listed_admin(str(uid)), pid, uid)

    def _is_listed_admin(self, user: str) -> bool:
        """Whether the settings make an admin of that user."""
        if not self._admins and not self._admin_groups:
            return False
        known = user_account(user)
        return not self._admins.isdisjoint(known.names) or not self._admin_groups.isdisjoint(known.groups)


def peer_cgroup(connection: socket.socket, pid: int) -> tuple[str, ...]:
    """The paths of the cgroups of the process at the other end, the unified one first. Raises Unidentified.

    The number `pid` may be another process's by now. So the kernel is asked for a descriptor of the process itself,
    and what was read counts only if that process lives afterwards: while it does, nobody else has its number.
    """
    try:
        pidfd = _peer_pidfd(connection)
    except OSError as error:
        raise IdentificationFailed(f"process {pid} is gone ({error.strerror}): connect again") from error
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
    """Of the lines of /proc/PID/cgroup: version 2's path first, then those of version 1's hierarchies."""
    found = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    return tuple(path for _, _, path in sorted(found, key=lambda fields: (fields[0] != "0", fields[1])))


def user_from_cgroup(groups: Iterable[str], pattern: re.Pattern[str]) -> str:
    """The user that the first path names which names one: by the part nearest to the root, for what is below may have
    been made by the user. Raises Unidentified."""
    groups = tuple(groups)
    for path in groups:
        if match := pattern.search(path):
            return next((group for group in match.groups() if group), match.group())
    raise IdentificationFailed(
        f"no user is named by the cgroup {groups[0] if groups else '(none)'}: c.GpuShare.cgroup_user must match it"
    )


def open_peer_pidfd(connection: socket.socket, pid: int) -> int:
    """A pidfd of the process at the other end, whose number was `pid`. Raises OSError.

    Before Linux 6.5 it is of the process that has this number now.
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
    ours, other = socket.socketpair()
    with ours, other:
        try:
            os.close(_peer_pidfd(ours))
        except OSError as error:
            return error.errno not in (errno.ENOPROTOOPT, errno.EINVAL)
    return True
