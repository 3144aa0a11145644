"""Messages of commands without an answer of a coordinator: the programs that share without one, and the next steps."""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from ..wire import address
from ..wire.client import Unreachable
from . import inspection


def report_failure(command: str, error: Exception, socket: str) -> int:
    """Print the reason why `jupyter gpushare COMMAND` has failed, and return its exit status.

    The status is 1 if no coordinator answers, and 2 for other errors.
    """
    print(f"jupyter gpushare {command}: {error}", file=sys.stderr)
    if not isinstance(error, Unreachable):
        return 2
    print(describe_sharing(socket), file=sys.stderr)
    return 1


def describe_sharing(socket: str = "") -> str:
    """Return a message about GPU sharing without an answer of a coordinator. Raise address.BadAddress.

    `socket` is the option of the command.
    """
    path = address.socket_path(socket)
    names = [f"{pid} ({inspection.process_name(pid)})" for pid in sharing_programs(path)]
    if holder := describe_silent_holder(path):
        programs = f"; these programs take turns by lock files meanwhile: {', '.join(names)}" if names else ""
        return f"{holder}; {silence_remedy(path)}{programs}"
    next_start = "the next shared kernel or 'jupyter gpushare run' starts a coordinator"
    if not names:
        return f"none of your programs shares a GPU now; {next_start}"
    return (
        f"these programs take turns by lock files meanwhile: {', '.join(names)}; {next_start}, and the programs "
        "reconnect by themselves"
    )


def describe_silent_holder(path: str) -> str:
    """Return a message about the coordinator that holds the socket `path` without an answer, or "" without one."""
    pid = _listener(path)
    if pid is None:
        return ""
    why = "is stopped" if _is_stopped(pid) else "does not answer"
    return f"a coordinator{f', pid {pid},' if pid else ''} holds the socket {path} and {why}"


def silence_remedy(path: str) -> str:
    """Return the next step for the coordinator that holds the socket `path` without an answer."""
    pid = _listener(path)
    if pid and _is_stopped(pid):
        return f"'kill -CONT {pid}' continues the coordinator"
    restart = "the next shared kernel or 'jupyter gpushare run' then starts another one"
    return f"try again, or end the coordinator{f' by kill {pid}' if pid else ''}: {restart}"


def _listener(path: str) -> int | None:
    """Return the process that listens at `path`, 0 for an unknown one, or None if no process listens there."""
    with contextlib.closing(sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except BlockingIOError:
            return 0  # its queue of new connections is full
        except OSError:
            return None
        pid = struct.unpack("3i", probe.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, 12))[0]
    return int(pid) if pid != 1 else 0  # systemd listens for the coordinator of the host


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def sharing_programs(path: str) -> Iterator[int]:
    """Yield the processes of this user that share GPUs under the coordinator's socket `path`."""
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            if folder.stat().st_uid == os.getuid() and _socket_of(folder) in ("", path):
                page = inspection.read_page(int(folder.name))
            else:
                continue
        except OSError:  # The process has ended, or this user may not inspect it.
            continue
        if page is not None:
            yield int(folder.name)


def _socket_of(folder: Path) -> str:
    """Return the socket in the environment of a process, or "" for a process that uses the default."""
    for entry in (folder / "environ").read_bytes().split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == b"GPUSHARE_SOCKET":
            return os.fsdecode(value).removeprefix("unix:")
    return ""
