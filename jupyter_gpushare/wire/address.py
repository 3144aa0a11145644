"""Where the coordinator's socket, its log and the device locks live.

Standard library only: this is imported on the way of every kernel start.
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
    """A socket address that cannot be used; the message says why and what is allowed."""


def is_accepting(path: str, timeout: float = 1.0) -> bool:
    """Whether something listens at `path`, be it that it hangs."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(timeout)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # it hangs: more connections wait for it than the system keeps
        except OSError:
            return False
    return True


def socket_path(explicit: str = "") -> str:
    """The coordinator's socket: `explicit`, else `$GPUSHARE_SOCKET`, else the system's if it answers, else ours."""
    path = explicit or os.environ.get("GPUSHARE_SOCKET", "")
    if not path and os.path.exists(SYSTEM_SOCKET) and is_accepting(SYSTEM_SOCKET):
        path = SYSTEM_SOCKET
    if not path:
        path = str(runtime_directory() / "coordinator.sock")
    path = path.removeprefix("unix:")
    if not os.path.isabs(path):
        raise BadAddress(f"socket address {path!r} is not an absolute path (allowed: /path or unix:/path)")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise BadAddress(f"socket address {path!r} is longer than {MAX_SOCKET_PATH} bytes, the limit of Unix sockets")
    return path


class MetricsAddress(NamedTuple):
    """Where metrics are told: a Unix socket, or else a port of an address."""

    path: str = ""
    host: str = ""
    port: int = 0


def metrics_address(text: str) -> MetricsAddress:
    """From "127.0.0.1:9400", "[::1]:9400", "unix:/path" or, for other hosts to read it, "open:0.0.0.0:9400".

    Raises BadAddress.
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
            f"{text!r}: {host!r} is no address (allowed: 127.0.0.1:9400, [::1]:9400, unix:/path)"
        ) from None
    if not found.is_loopback and address == text:
        raise BadAddress(
            f"{text!r} could be read from other hosts: allowed are 127.0.0.1, [::1], localhost and unix:/path; "
            f"or open:{text}, if that is meant"
        )
    return MetricsAddress(host=str(found), port=int(port))


def runtime_directory() -> Path:
    """`$XDG_RUNTIME_DIR/gpushare`, else `/tmp/gpushare-$UID`. Not Jupyter's: that may be shared between hosts."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and os.path.isdir(base):
        return Path(base) / "gpushare"
    return Path(f"/tmp/gpushare-{os.getuid()}")


def state_directory() -> Path:
    """Logs and state, per host because home directories may be shared between hosts."""
    base = os.environ.get("XDG_STATE_HOME", "") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "gpushare" / (socket.gethostname() or "localhost")


def lock_directory() -> Path:
    """One place that all users of the host reach; the shim applies the same rule."""
    return Path(os.environ.get("GPUSHARE_LOCK_DIR", "") or "/dev/shm/gpushare")


def make_private_directory(directory: Path) -> None:
    """Create `directory` for this user alone, or check that it is that already.

    Raises PermissionError when somebody else owns it or may write to it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(
            f"{directory} must be a directory that belongs to uid {os.getuid()} and that nobody else may write to"
        )
