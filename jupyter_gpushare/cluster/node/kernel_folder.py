"""Files of one kernel on its node, which the keeper and the node agents of a user share.

| file | content |
| --- | --- |
| `connection.json` | connection file of the kernel |
| `state` | process ids with their start times, ports, client and start, as the keeper has written them |
| `exit` | exit status, and the keeper's reason if the keeper has ended the kernel |
| `ports` | ports of the kernel, from before its start on |
| `output` | text that the kernel has printed |
| `adoption` | locked while a server waits for the kernel |

`broken_start.py` describes the file `starting`, and `kernel_moves.py` the files of moves.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...wire import address
from ..channel.messages import Ended, NodeError, Started
from .keeper import start_ticks, write_file

_STATE = {"pid", "pid_ticks", "keeper", "keeper_ticks", "ports", "client"}
_EXIT = {"status", "reason"}
_NAMES = re.compile(r"[\w.-]{1,128}")


def kernels_folder() -> Path:
    """Return the folder of this user's kernels on this host.

    The runtime directory would not do, because systemd removes it at the end of the user's last session.
    """
    return address.state_directory() / "kernels"


def all_kernels() -> list[KernelFolder]:
    folder = kernels_folder()
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [KernelFolder(name) for name in names if _NAMES.fullmatch(name)]


class KernelFolder:
    """Folder of the kernel with this id. Raise NodeError for an id that is no name of a folder.

    With a `start`, the kernel of another start counts as unknown.
    """

    def __init__(self, kernel: str, start: str = "") -> None:
        if not _NAMES.fullmatch(kernel) or set(kernel) == {"."}:
            raise NodeError(
                f"{kernel!r} is no id of a kernel: allowed are up to 128 letters, digits, dots and hyphens",
                "bad_kernel",
            )
        self.kernel = kernel
        self._start = start
        self.path = kernels_folder() / kernel

    @property
    def connection_file(self) -> Path:
        return self.path / "connection.json"

    def exists(self) -> bool:
        """Return whether a kernel of this id has been started and not been forgotten."""
        return self._read("state", _STATE) is not None

    def create(self) -> None:
        """Create the folder of a kernel that is about to start, without the files of an earlier start."""
        self.make()
        for name in ("state", "exit", "output"):
            (self.path / name).unlink(missing_ok=True)

    def make(self) -> None:
        for path in (self.path.parent, self.path):
            address.make_private_directory(path)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def state(self) -> dict[str, Any]:
        """Return the keeper's `state`. Raise NodeError without one."""
        found = self._read("state", _STATE)
        if found is None or self._start not in ("", found.get("start")):
            raise NodeError(f"the node has no kernel {self.kernel}", "unknown_kernel")
        return found

    def started(self) -> Started:
        state = self.state()
        return Started(kernel=self.kernel, pid=state["pid"], ports=state["ports"])

    def reserve_ports(self, ports: Sequence[int]) -> None:
        write_file(str(self.path / "ports"), {"ports": list(ports)})

    def reserved_ports(self) -> set[int]:
        found = self._read("ports", {"ports"})
        return set(found["ports"]) if found else set()

    def ended(self) -> Ended | None:
        """Return the end of the kernel, or None for a kernel that runs."""
        found = self._read("exit", _EXIT)
        if found is None:
            state = self.state()
            if any(start_ticks(state[name]) == state[f"{name}_ticks"] for name in ("pid", "keeper")):
                return None
            found = self._read("exit", _EXIT)  # which the keeper may have written meanwhile
        if found is None:
            return Ended(status=None)  # the keeper was killed, or the host was started anew
        return Ended(status=found["status"], reason=found["reason"])

    def processes(self) -> Iterator[int]:
        """Yield the ids of the keeper and of the kernel, as far as they run."""
        state = self.state()
        for name in ("keeper", "pid"):
            if start_ticks(state[name]) == state[f"{name}_ticks"]:
                yield state[name]

    def output(self, max_bytes: int) -> str:
        """Return the last bytes that the kernel has printed."""
        with suppress(OSError), open(self.path / "output", "rb") as file:
            file.seek(-min(max_bytes, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return file.read().decode(errors="replace")
        return ""

    def adopt(self) -> int:
        """Return a file descriptor; until it is closed, the kernel counts as adopted."""
        descriptor = os.open(self.path / "adoption", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def _read(self, name: str, keys: set[str]) -> dict[str, Any] | None:
        """Return the content of a file with these keys, or None without one. A power loss may leave an empty file."""
        try:
            found = json.loads((self.path / name).read_text())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        return found if isinstance(found, dict) and keys <= found.keys() else None
