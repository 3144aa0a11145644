"""Messages of commands without a coordinator: the programs that share without one, and the next steps."""

from __future__ import annotations

import os
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
    """Return a message about GPU sharing without a coordinator. Raise address.BadAddress.

    `socket` is the option of the command.
    """
    names = [f"{pid} ({inspection.process_name(pid)})" for pid in sharing_programs(address.socket_path(socket))]
    next_start = "the next shared kernel or 'jupyter gpushare run' starts a coordinator"
    if not names:
        return f"none of your programs shares a GPU now; {next_start}"
    return (
        f"these programs take turns by lock files meanwhile: {', '.join(names)}; {next_start}, and the programs "
        "reconnect by themselves"
    )


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
