"""Tests of lock files and bells of devices: access for all users, refused files, and the processes with a lock."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from jupyter_gpushare.agent.lock_files import open_bell
from jupyter_gpushare.coordinator.host import device_locks
from jupyter_gpushare.wire import address

from .protocol_process import lock_as_other_coordinator

UUID = "GPU-l1"


def path(end: str) -> Path:
    return address.lock_directory() / f"{UUID}.{end}"


@pytest.fixture(autouse=True)
def no_files(own_host: Path) -> None:
    for end in ("lock", "bell"):
        path(end).unlink(missing_ok=True)


def test_lock_and_bell_files_are_usable_by_every_user() -> None:
    mask = os.umask(0o077)
    try:
        device_locks.create_files(UUID)
        device_locks.create_files(UUID)
    finally:
        os.umask(mask)
    lock, bell = path("lock").lstat(), path("bell").lstat()
    assert stat.S_ISREG(lock.st_mode) and stat.S_ISFIFO(bell.st_mode)
    assert [stat.S_IMODE(found.st_mode) for found in (lock, bell)] == [0o666, 0o666]
    os.close(open_bell(UUID))


@pytest.mark.parametrize("end", ["lock", "bell"])
@pytest.mark.parametrize("kind", ["folder", "link", "private"])
def test_file_of_another_kind_is_refused(end: str, kind: str, tmp_path: Path) -> None:
    file, target = path(end), tmp_path / "target"
    target.write_text("")
    target.chmod(0o600)
    file.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        file.mkdir()
    elif kind == "link":
        file.symlink_to(target)
    else:
        file.touch(0o600)
    with pytest.raises(PermissionError, match="is not a file of mode 0666 that all users can use"):
        device_locks.create_files(UUID)
    assert target.stat().st_mode & 0o777 == 0o600
    if kind == "folder":
        file.rmdir()


def test_lock_holders_are_listed_by_process_id() -> None:
    device_locks.create_files(UUID)
    assert device_locks.lock_holders(UUID) == []
    with lock_as_other_coordinator(UUID):
        assert device_locks.lock_holders(UUID) == [os.getpid()]
