"""Sockets of the coordinator in the file system, with their folders and the lock against a second coordinator."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

from ...config.traits import GpuShare
from ...wire import address
from .peer_identity import SOCKET

PRIVATE_MODE, PUBLIC_MODE = 0o600, 0o666  # of sockets: this user or all users may connect
_FIRST_INHERITED_DESCRIPTOR = 3  # SD_LISTEN_FDS_START
_BACKLOG = 1024  # connections that wait for accept; Linux may allow less


class InvalidInheritedSocket(ValueError):
    """Error for an inherited descriptor that is not a listening socket; the message has the descriptor."""


class SocketSet:
    """Sockets of one coordinator: the socket of all users, and sockets of single users if these identify users."""

    def __init__(self, traits: GpuShare, system: bool, inherited: list[socket.socket]) -> None:
        """Determine the paths of the sockets. Raises BadAddress.

        With `system`, all users of the host may connect. The sockets in `inherited` listen already.
        """
        self._system = system
        self._users = {path: user for user, path in traits.sockets.items()} if traits.identity == SOCKET else {}
        self.listeners: dict[socket.socket, str] = {
            listener: self._users.get(_path_of(listener), "") for listener in inherited
        }
        main = [_path_of(listener) for listener, user in self.listeners.items() if not user]
        own = address.SYSTEM_SOCKET if system and not traits.coordinator else traits.coordinator
        self.path = main[0] if main else address.socket_path(own)
        self._inherited_paths = {_path_of(listener) for listener in inherited}
        self._created_inodes: dict[str, int] = {}  # inodes by path
        self._lock: Any = None

    def prepare(self) -> None:
        """Create the folders of the sockets. Raises OSError if a socket cannot be created there."""
        for path in self._missing():
            if path in self._users:
                prepare_user_directory(Path(path).parent)
            elif self._system:
                prepare_public_directory(Path(path).parent)
            else:
                prepare_private_directory(Path(path).parent)
            check_path(path)

    def _missing(self) -> list[str]:
        return [path for path in (self.path, *self._users) if path not in self._inherited_paths]

    def acquire(self, wait: float) -> bool:
        """Become the coordinator of the socket, or return False if another one still is after `wait` seconds."""
        if self.path in self._inherited_paths:
            return True  # the service manager that created the socket starts only one coordinator
        self._lock = take_socket_lock(self.path, wait)
        return self._lock is not None

    def open(self) -> None:
        """Create the sockets that were not inherited. Raises OSError."""
        for path in self._missing():
            user = self._users.get(path, "")
            # The folder of a user's socket keeps other users out. Inside a container, the user may have any uid.
            listener = listen(path, PUBLIC_MODE if user or (self._system and not self._users) else PRIVATE_MODE)
            self.listeners[listener] = user
            self._created_inodes[path] = os.stat(path).st_ino

    def remove(self) -> bool:
        """Remove the created sockets. Return False if another coordinator has replaced the main socket."""
        is_own = self.path in self._inherited_paths
        for path, inode in self._created_inodes.items():
            if os.path.exists(path) and os.stat(path).st_ino == inode:
                os.unlink(path)
                is_own = is_own or path == self.path
        return is_own


def _path_of(listener: socket.socket) -> str:
    return str(listener.getsockname())


def prepare_private_directory(directory: Path) -> None:
    """Create the socket's directory for this user alone, unless the settings name an existing directory."""
    if directory == address.runtime_directory() or not directory.exists():
        address.make_private_directory(directory)


def prepare_user_directory(directory: Path) -> None:
    """Create the directory of a user's socket, if it does not exist.

    The directory above keeps other users of this host out. A container into which this directory is mounted can enter
    it with any uid.
    """
    if directory.exists():
        return
    above = directory.parent
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700)
    if not above.stat().st_mode & 0o077:
        directory.chmod(0o755)


def prepare_public_directory(directory: Path) -> None:
    """Create a directory that all users may enter, and only root and this user may change. Raises PermissionError."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022:
        raise PermissionError(
            f"{directory} must be a directory that belongs to root or uid {os.getuid()}, without write access for "
            "other users: they could put a socket of their own there"
        )


def check_path(path: str) -> None:
    """Raise FileExistsError if `path` is no socket, because the coordinator would replace it."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is not a socket: choose another address for the coordinator")


def take_socket_lock(path: str, wait: float) -> Any:
    """Take the lock that makes this process the only coordinator of the socket.

    Return the open lock file, or None if another coordinator has the lock.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # other users may write to the folder
    lock = os.fdopen(os.open(path + ".lock", flags, 0o600), "r+")
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if address.is_accepting(path) or time.monotonic() >= deadline:
                lock.close()
                return None
        time.sleep(0.02)


def listen(path: str, mode: int = PRIVATE_MODE) -> socket.socket:
    """Bind the socket. The caller has the socket's lock, so an existing socket is left over and is removed."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.path.lexists(path):
        os.unlink(path)
    mask = os.umask(0o777 & ~mode)
    try:
        listener.bind(path)
    finally:
        os.umask(mask)
    listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


def inherited_sockets() -> list[socket.socket]:
    """Return the listening sockets that systemd passed to this process (see sd_listen_fds(3)), which may be none.

    Raises InvalidInheritedSocket.
    """
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    listeners = []
    for descriptor in range(_FIRST_INHERITED_DESCRIPTOR, _FIRST_INHERITED_DESCRIPTOR + int(count)):
        try:
            os.set_inheritable(descriptor, False)
            listener = socket.socket(fileno=descriptor)
            listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise InvalidInheritedSocket(f"descriptor {descriptor} of LISTEN_FDS={count}: {error.strerror}") from error
        if listener.family != socket.AF_UNIX or listener.type != socket.SOCK_STREAM or not listens:
            raise InvalidInheritedSocket(
                f"descriptor {descriptor} of LISTEN_FDS={count} is not a listening Unix stream socket: "
                "use ListenStream=/path in the socket unit"
            )
        listener.setblocking(False)
        listeners.append(listener)
    return listeners
