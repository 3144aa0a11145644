"""The files that back turns: for each device a lock file, and its bell.

Processes lock the file (`native/shim/agent/turn_lock.c`). A coordinator makes both, and looks at which
processes hold it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from ...wire import address


def create_files(uuid: str) -> None:
    """Make the device's lock file and its bell, for everybody.

    Raises OSError, also if another user has made one of them another way before: that is that user's file, in a sticky
    folder.
    """
    directory = address.lock_directory()
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o1777)
        directory.chmod(0o1777)
    path = directory / f"{uuid}.lock"
    with contextlib.suppress(FileExistsError):
        _make_accessible(path, os.O_CREAT | os.O_EXCL)
    _check_mode(path, stat.S_ISREG(path.lstat().st_mode))
    bell = directory / f"{uuid}.bell"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(bell, 0o666)
        _make_accessible(bell, os.O_NONBLOCK)
    _check_mode(bell, stat.S_ISFIFO(bell.lstat().st_mode))


def _make_accessible(path: Path, flags: int) -> None:
    """Make the file readable and writable for everybody, whatever our umask."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666)
    try:
        os.fchmod(descriptor, 0o666)
    finally:
        os.close(descriptor)


def _check_mode(path: Path, is_right_kind: bool) -> None:
    found = path.lstat()
    if not is_right_kind or found.st_mode & 0o666 != 0o666:
        raise PermissionError(f"{path} is not a file of mode 0666 that others can use: uid {found.st_uid} made it")


def lock_holders(uuid: str) -> list[int]:
    """Processes of this host that have locked the device: the kernel names who asked for the lock."""
    try:
        found = (address.lock_directory() / f"{uuid}.lock").lstat()
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    # "1: FLOCK  ADVISORY  WRITE 4711 00:1a:42 0 EOF"; "1: -> FLOCK ..." only waits.
    fields = [line.split() for line in lines]
    return sorted({int(one[4]) for one in fields if one[1] == "FLOCK" and one[5] == name and int(one[4]) > 0})
