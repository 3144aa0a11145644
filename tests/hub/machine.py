"""Machine with real uids, whose user database, /run and /dev/shm only the test uses."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from ..support.polling import WAIT_SECONDS

TOOLS = ("unshare", "nsenter", "setpriv", "mount")
# Folders that every user must be able to read: this checkout, and the Python that runs its tests.
NEEDED = (Path(__file__).resolve().parents[2], Path(sys.prefix), Path(sys.base_prefix))
# The files of a user in /tmp, which all machines share, have the uid in their names.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
FIRST_UID = 64101 + 16 * ((20 * _WORKER + os.getpid() % 20) % 80)


class User(NamedTuple):
    name: str
    uid: int
    home: Path


class MountNamespaceMachine:
    """Mount namespace with its own users. `argv` is the command of a program in it, as root or as a user."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Make the namespace with users `names`, in a folder that every user can reach."""
        self.users = {name: User(name, FIRST_UID + number, folder / "home" / name) for number, name in enumerate(names)}
        self._write_database(folder)
        for user in self.users.values():
            user.home.mkdir(parents=True, mode=0o700)
            (folder / "home").chmod(0o755)
            os.chown(user.home, user.uid, user.uid)
        self._first = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", "\n".join(_first(folder))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._first.stdout and self._first.stderr
        if self._first.stdout.readline() != b"ready\n":
            error = self._first.stderr.read().decode()
            self.close()
            raise OSError(error)

    def _write_database(self, folder: Path) -> None:
        """Write a user database with the accounts of this machine, without login, and of the test."""
        passwd, group = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
        for user in self.users.values():
            passwd += f"{user.name}:x:{user.uid}:{user.uid}::{user.home}:/bin/sh\n"
            group += f"{user.name}:x:{user.uid}:\n"
        (folder / "passwd").write_text(passwd)
        (folder / "group").write_text(group)

    def argv(self, *command: str, user: str = "") -> list[str]:
        """Return the command line that runs `command` in the namespace, as root or as `user`."""
        inside = ["nsenter", f"--mount=/proc/{self._first.pid}/ns/mnt", "--"]
        if user:
            uid = str(self.users[user].uid)
            inside += ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
        return [*inside, *command]

    def path(self, inside: str) -> Path:
        """Return the path outside of the namespace for a path `inside`."""
        return Path(f"/proc/{self._first.pid}/root{inside}")

    def close(self) -> None:
        for stream in (self._first.stdin, self._first.stdout, self._first.stderr):
            assert stream
            stream.close()
        self._first.wait(WAIT_SECONDS)


@contextlib.contextmanager
def made(*names: str) -> Iterator[tuple[Path, MountNamespaceMachine]]:
    """Yield a machine and its folder, and remove both at the end."""
    folder = Path(tempfile.mkdtemp(prefix="gs-u-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        with contextlib.closing(MountNamespaceMachine(folder, names)) as machine:
            yield folder, machine
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _first(folder: Path) -> Iterator[str]:
    """Yield the commands of the namespace's first program, which ends with its standard input."""
    yield "mount -t tmpfs -o mode=755 run /run"
    yield "mount -t tmpfs -o mode=1777 shm /dev/shm"
    yield f"mount --bind {folder}/passwd /etc/passwd"
    yield f"mount --bind {folder}/group /etc/group"
    # A needed folder in a user's home is not readable, so a folder with only the needed one replaces the home.
    hidden = {path: closed for path in NEEDED if (closed := _closed(path))}
    for number, path in enumerate(hidden):
        yield f"mkdir {folder}/{number} && mount --bind {quote(str(path))} {folder}/{number}"
    for closed in set(hidden.values()):
        yield f"mount -t tmpfs -o mode=755 home {quote(str(closed))}"
    for number, path in enumerate(hidden):
        yield f"mkdir -p {quote(str(path))} && mount --move {folder}/{number} {quote(str(path))}"
    yield "echo ready"
    yield "exec cat"


def _closed(path: Path) -> Path | None:
    """Return the first folder on the way to `path` that some users may not enter, or None."""
    for folder in reversed([path, *path.parents]):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


@functools.cache
def problem() -> str:
    """Return the reason why such a machine cannot be made here, or an empty text."""
    if os.geteuid() != 0:
        return "needs root, to change uids"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)} (util-linux)"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "run", "/run"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"needs a mount namespace: {done.stderr.strip()}" if done.returncode else ""
