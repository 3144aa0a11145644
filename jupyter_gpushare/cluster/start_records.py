"""Records of the starts that wait for a node with room, for commands in a terminal.

Each process that has waiting starts has one file, which exists as long as a start waits.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..wire import address
from .node.keeper import start_ticks, write_file


class StartRecord(msgspec.Struct, kw_only=True):
    """Waiting start of a kernel. `session` is the notebook's path, or "" without one.

    `since` and `expected_at` are seconds since 1970, and None stands for an unknown time. `message` is the sentence why
    no node has room.
    """

    kernel: str
    label: str
    session: str
    nodes: list[str]
    position: int
    since: float
    expected_at: float | None
    message: str

    def view(self, path: str) -> dict[str, Any]:
        """Return the start as JSON shows it now, with this path of its notebook.

        `expected_wait`, in seconds, is None if unknown.
        """
        return {
            "kernel": self.kernel,
            "label": self.label,
            "path": path,
            "nodes": self.nodes,
            "position": self.position,
            "since": self.since,
            "expected_wait": None if self.expected_at is None else max(0.0, self.expected_at - time.time()),
            "message": self.message,
        }


class _ProcessRecord(msgspec.Struct, kw_only=True):
    ticks: int  # of the process, by which another process with the same id differs
    starts: list[StartRecord]


def _folder() -> Path:
    return address.runtime_directory() / "waiting-starts"


def save(starts: Sequence[StartRecord]) -> None:
    """Replace the records of this process. A file that cannot be written is missing in a terminal only."""
    with suppress(OSError):
        file = _folder() / str(os.getpid())
        if starts:
            address.make_private_directory(_folder())
            record = _ProcessRecord(ticks=start_ticks(os.getpid()), starts=list(starts))
            write_file(str(file), msgspec.to_builtins(record))
        else:
            file.unlink(missing_ok=True)


def waiting() -> Iterator[StartRecord]:
    """Yield the waiting starts of all processes of this user that run, and remove what other processes have left."""
    files: list[Path] = []
    with suppress(FileNotFoundError):
        files = sorted(file for file in _folder().iterdir() if file.name.isdigit())
    for file in files:
        try:
            record = msgspec.convert(json.loads(file.read_text()), _ProcessRecord)
        except (OSError, ValueError, msgspec.ValidationError):
            continue
        if start_ticks(int(file.name)) == record.ticks:
            yield from record.starts
        else:
            file.unlink(missing_ok=True)
