"""The coordinator's sockets in the file system: where they may lie, who made them, and that there is one of us only."""

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

PRIVATE_MODE, PUBLIC_MODE = 0o600, 0o666  # who may connect
_FIRST_INHERITED_DESCRIPTOR = 3  # SD_LISTEN_FDS_START
_BACKLOG = 1024  # connections that wait to be accepted; the system may allow less


class InvalidInheritedSocket(ValueError):
    """What started this coordinator handed it something that is no listening socket; the message says what."""


class SocketSet:
    """The sockets of one coordinator: everybody's, and those of single users where sockets say who is who."""

    def __init__(self, traits: GpuShare, system: bool, inherited: list[socket.socket]) -> None:
        """`system`: all users of the host may connect. `given`: sockets that listen already. Raises BadAddress."""
        self._system = system
        self._users = {path: user for user, path in traits.sockets.items()} if traits.identity == SOCKET else {}
        self.listeners: dict[socket.socket, str] = {
            given_: self._users.get(_path_of(given_), "") for given_ in inherited
        }
        main = [_path_of(listener) for listener, user in self.listeners.items() if not user]
        own = address.SYSTEM_SOCKET if system and not traits.coordinator else traits.coordinator
        self.path = main[0] if main else address.socket_path(own)
        self._inherited_paths = {_path_of(listener) for listener in inherited}
        self._created_inodes: dict[str, int] = {}  # inodes by path
        self._lock: Any = None

    def prepare(self) -> None:
        """Raises OSError if a socket cannot be where it is to be."""
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
        """Become the coordinator of the socket; False: another one is, still after `wait` seconds."""
        if self.path in self._inherited_paths:
            return True  # who made it starts one of us
        self._lock = take_socket_lock(self.path, wait)
        return self._lock is not None

    def open(self) -> None:
        """Make the sockets that nobody has made yet. Raises OSError."""
        for path in self._missing():
            user = self._users.get(path, "")
            # The folder around a user's own socket keeps others out: inside a container, anybody is that user.
            listener = listen(path, PUBLIC_MODE if user or (self._system and not self._users) else PRIVATE_MODE)
            self.listeners[listener] = user
            self._created_inodes[path] = os.stat(path).st_ino

    def remove(self) -> bool:
        """Remove what was made; False if another coordinator has put its own socket there meanwhile."""
        ours = self.path in self._inherited_paths
        for path, inode in self._created_inodes.items():
            if os.path.exists(path) and os.stat(path).st_ino == inode:
                os.unlink(path)
                ours = ours or path == self.path
        return ours


def _path_of(listener: socket.socket) -> str:
    return str(listener.getsockname())


def prepare_private_directory(directory: Path) -> None:
    """The socket's directory: made for this user alone, unless somebody chose an existing one."""
    if directory == address.runtime_directory() or not directory.exists():
        address.make_private_directory(directory)


def prepare_user_directory(directory: Path) -> None:
    """The directory around a user's own socket, if it is not there. The one above it keeps others of this host out; who
    has this one mounted, inside a container, can enter it with any uid."""
    if directory.exists():
        return
    above = directory.parent
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700)
    if not above.stat().st_mode & 0o077:
        directory.chmod(0o755)


def prepare_public_directory(directory: Path) -> None:
    """A directory that everybody may enter, and only root and this user may change. Raises PermissionError."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, os.getuid()) or found.st_mode & 0o022:
        raise PermissionError(
            f"{directory} must be a directory that belongs to root or uid {os.getuid()} and that nobody else may "
            "write to: others could put a socket of their own there"
        )


def check_path(path: str) -> None:
    """Raise FileExistsError if something is at `path` that no coordinator left there: it would be removed."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is no socket: choose another address for the coordinator")


def take_socket_lock(path: str, wait: float) -> Any:
    """The lock that makes this the only coordinator of the socket, held while it lives; None if another has it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # it may lie in a folder that others write to
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
    """Bind the socket. The caller holds the socket's lock, so what is there is left over."""
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
    """Listening sockets that systemd made and handed to this process (sd_listen_fds(3)); none if it did not.

    Raises BadInheritance.
    """
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return []
    found = []
    for descriptor in range(_FIRST_INHERITED_DESCRIPTOR, _FIRST_INHERITED_DESCRIPTOR + int(count)):
        try:
            os.set_inheritable(descriptor, False)
            listener = socket.socket(fileno=descriptor)
            listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise InvalidInheritedSocket(f"descriptor {descriptor} of LISTEN_FDS={count}: {error.strerror}") from error
        if listener.family != socket.AF_UNIX or listener.type != socket.SOCK_STREAM or not listens:
            raise InvalidInheritedSocket(
                f"descriptor {descriptor} of LISTEN_FDS={count} is no listening Unix stream socket: "
                "allowed is ListenStream=/path in the socket unit"
            )
        listener.setblocking(False)
        found.append(listener)
    return found
