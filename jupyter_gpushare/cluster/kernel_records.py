"""Records of the kernels on nodes, on the server's side, by which a later Jupyter server of the user adopts them.

A record has the connection information with its keys, and the identity of the client.
So a record is as secret as a connection file. A record exists from the start of a kernel to its end.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..wire import address
from .channel.messages import Connection
from .node.keeper import start_ticks, write_file


class KernelRecord(msgspec.Struct, kw_only=True):
    """Kernel on a node. `session` is the notebook's path if a session has started the kernel, else "".

    `engine` is the digest of the settings by which a server reaches the node, and `root` the folder of the server's
    notebooks. A record of an older version has "" for these, and that of a kernel of a script has "" for `root`.
    """

    kernel: str
    kernel_name: str
    node: str
    pid: int
    connection: Connection
    client: str
    token: str
    quota: str
    session: str
    engine: str = ""
    root: str = ""
    server: int = msgspec.field(default_factory=os.getpid)
    server_ticks: int = msgspec.field(default_factory=lambda: start_ticks(os.getpid()))

    @property
    def has_server(self) -> bool:
        """Return whether the Jupyter server that has started or adopted the kernel runs."""
        return start_ticks(self.server) == self.server_ticks

    def has_engine(self, digest: str) -> bool:
        """Return whether a server with this digest of its settings reaches the kernel's node."""
        return self.engine in ("", digest)

    def has_root(self, root: Path) -> bool:
        """Return whether a server with this folder may adopt the kernel."""
        return self.root in ("", str(root))


def notebook_root(server: Any) -> Path:
    """Return the folder of a Jupyter server's notebooks."""
    return Path(getattr(server.contents_manager, "root_dir", server.root_dir))


def _folder() -> Path:
    return address.state_directory() / "remote-kernels"


def save(record: KernelRecord) -> None:
    address.make_private_directory(_folder())
    write_file(str(_folder() / record.kernel), msgspec.to_builtins(record))


def claim(kernel: str) -> KernelRecord | None:
    """Return the record of a kernel whose server has ended, which belongs to this process from now on, or None.

    Of several servers, only one claims the kernel. A process may claim its own kernel again.
    """
    address.make_private_directory(_folder())
    with open(_folder() / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = load(kernel)
        mine = {"server": os.getpid(), "server_ticks": start_ticks(os.getpid())}
        if record is None or (record.has_server and record.server != os.getpid()):
            return None
        record = msgspec.structs.replace(record, **mine)
        save(record)
        return record


def load(kernel: str) -> KernelRecord | None:
    """Return the record of a kernel, or None without a valid one."""
    try:
        return msgspec.convert(json.loads((_folder() / kernel).read_text()), KernelRecord)
    except (OSError, ValueError, msgspec.ValidationError):
        return None


def remove(kernel: str) -> None:
    (_folder() / kernel).unlink(missing_ok=True)


def without_server() -> Iterator[KernelRecord]:
    """Yield the records of kernels whose Jupyter servers have ended without ending their kernels."""
    names: list[str] = []
    with suppress(FileNotFoundError):
        names = sorted(path.name for path in _folder().iterdir() if path.suffix != ".new" and path.name != ".lock")
    for name in names:
        record = load(name)
        if record and not record.has_server:
            yield record
