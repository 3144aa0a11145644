"""Addresses of the coordinator's socket and metrics, and directories of its socket, its state and the lock files.

This module imports the standard library only, because every start of a kernel imports it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import NamedTuple

SYSTEM_SOCKET = os.environ.get("GPUSHARE_SYSTEM_SOCKET", "") or "/run/gpushare/coordinator.sock"
# sockaddr_un.sun_path holds 108 bytes with its terminator.
MAX_SOCKET_PATH = 107


class BadAddress(ValueError):
    """Error about a socket address that cannot be used. The message has the reason and the allowed addresses."""


def is_accepting(path: str, timeout: float = 1.0) -> bool:
    """Return whether a program listens at `path`, even if the program does not accept connections."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(timeout)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # the program hangs: its queue of new connections is full
        except OSError:
            return False
    return True


def socket_path(explicit: str = "") -> str:
    """Return the path of the coordinator's socket. Raises BadAddress.

    The path is `explicit`, else `$GPUSHARE_SOCKET`, else the system's socket if a coordinator listens there,
    else the socket in this user's runtime directory.
    """
    path = explicit or os.environ.get("GPUSHARE_SOCKET", "")
    if not path and os.path.exists(SYSTEM_SOCKET) and is_accepting(SYSTEM_SOCKET):
        path = SYSTEM_SOCKET
    if not path:
        path = str(runtime_directory() / "coordinator.sock")
    path = path.removeprefix("unix:")
    if not os.path.isabs(path):
        raise BadAddress(f"the socket address {path!r} is not an absolute path (allowed: /path or unix:/path)")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise BadAddress(f"the socket address {path!r} exceeds {MAX_SOCKET_PATH} bytes, the limit of Unix sockets")
    return path


class MetricsAddress(NamedTuple):
    """Address at which metrics are served: a Unix socket, or else a port of an IP address."""

    path: str = ""
    host: str = ""
    port: int = 0


def metrics_address(text: str) -> MetricsAddress:
    """Parse "127.0.0.1:9400", "[::1]:9400" or "unix:/path". Raises BadAddress.

    "open:0.0.0.0:9400" admits other hosts.
    """
    if text.startswith("unix:"):
        return MetricsAddress(path=socket_path(text))
    address = text.removeprefix("open:")
    host, separator, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise BadAddress(f"{text!r} has no port (allowed: 127.0.0.1:9400, unix:/path, open:ADDRESS:PORT)")
    try:
        found = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise BadAddress(
            f"{text!r}: {host!r} is not an IP address (allowed: 127.0.0.1:9400, [::1]:9400, unix:/path)"
        ) from None
    if not found.is_loopback and address == text:
        raise BadAddress(
            f"other hosts could read {text!r}: allowed are 127.0.0.1, [::1], localhost and unix:/path, "
            f"or open:{text} to admit other hosts"
        )
    return MetricsAddress(host=str(found), port=int(port))


def runtime_directory() -> Path:
    """Return `$XDG_RUNTIME_DIR/gpushare`, else `/tmp/gpushare-$UID`.

    Jupyter's runtime directory would not do, because hosts may share it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and os.path.isdir(base):
        return Path(base) / "gpushare"
    return Path(f"/tmp/gpushare-{os.getuid()}")


def state_directory() -> Path:
    """Return the directory of logs and state. Each host has one, because hosts may share home directories."""
    base = os.environ.get("XDG_STATE_HOME", "") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "gpushare" / (socket.gethostname() or "localhost")


def lock_directory() -> Path:
    """Return the directory of lock files, which all users of the host share; the shim has the same rule."""
    return Path(os.environ.get("GPUSHARE_LOCK_DIR", "") or "/dev/shm/gpushare")


def make_private_directory(directory: Path) -> None:
    """Create `directory` for this user, or check that only this user may write to it.

    Raises PermissionError if another user owns the directory or may write to it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(
            f"{directory} must be a directory that belongs to uid {os.getuid()} and that no other user may write to"
        )
