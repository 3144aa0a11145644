"""Lock file and bell of each device.

Processes lock the lock file (`native/shim/agent/turn_lock.c`). A coordinator creates both files, and reads from Linux
the processes that have a lock.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from ...wire import address


def create_files(uuid: str) -> None:
    """Create the device's lock file and bell, with access for all users.

    Raises OSError, also if another user has created one of the files with another mode. In a sticky folder, only that
    user can change the file.
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
    """Make the file readable and writable for all users, independently of the umask."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o666)
    try:
        os.fchmod(descriptor, 0o666)
    finally:
        os.close(descriptor)


def _check_mode(path: Path, is_right_kind: bool) -> None:
    status = path.lstat()
    if not is_right_kind or status.st_mode & 0o666 != 0o666:
        raise PermissionError(
            f"{path}, which uid {status.st_uid} created, is not a file of mode 0666 that all users can use: remove it"
        )


def lock_holders(uuid: str) -> list[int]:
    """Return the processes of this host that requested the present locks of the device, as /proc/locks names them."""
    try:
        status = (address.lock_directory() / f"{uuid}.lock").lstat()
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    # A lock: "1: FLOCK  ADVISORY  WRITE 4711 00:1a:42 0 EOF"; a waiting process: "1: -> FLOCK ...".
    fields = [line.split() for line in lines]
    return sorted({int(one[4]) for one in fields if one[1] == "FLOCK" and one[5] == name and int(one[4]) > 0})
