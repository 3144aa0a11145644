"""What to tell when no coordinator answers: who shares without one, and how one comes back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from ..wire import address
from ..wire.client import Unreachable
from . import inspection


def report_failure(command: str, error: Exception, socket: str) -> int:
    """Say why `jupyter gpushare COMMAND` has failed; its exit status: 1 when no coordinator answers, else 2."""
    print(f"jupyter gpushare {command}: {error}", file=sys.stderr)
    if not isinstance(error, Unreachable):
        return 2
    print(describe_sharing(socket), file=sys.stderr)
    return 1


def describe_sharing(socket: str = "") -> str:
    """A sentence for people. `socket` as given to a command. Raises address.BadAddress."""
    names = [f"{pid} ({inspection.process_name(pid)})" for pid in sharing_programs(address.socket_path(socket))]
    back = "the next shared kernel or 'jupyter gpushare run' starts a coordinator"
    if not names:
        return f"no program of yours shares a GPU there now; {back}"
    return f"programs take turns by lock files meanwhile: {', '.join(names)}; {back}, and they find it by themselves"


def sharing_programs(path: str) -> Iterator[int]:
    """The processes of this user that share by the coordinator at `path`, when there is one."""
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            if folder.stat().st_uid == os.getuid() and _socket_of(folder) in ("", path):
                page = inspection.read_page(int(folder.name))
            else:
                continue
        except OSError:  # it has ended, or may not be looked into
            continue
        if page is not None:
            yield int(folder.name)


def _socket_of(folder: Path) -> str:
    """What it was started with; "" if it finds one by itself."""
    for entry in (folder / "environ").read_bytes().split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == b"GPUSHARE_SOCKET":
            return os.fsdecode(value).removeprefix("unix:")
    return ""
