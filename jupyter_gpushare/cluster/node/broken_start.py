"""Starts that were broken off by the end of their node agent, and what they have left on the node.

The file `starting` in a kernel's folder has the client and the id of the latest start. The node agent holds a lock on
the file during the start, and so does the keeper until it has written `state`. Linux releases the lock at their ends.
A folder with the file, without `state` and without the lock belongs to a start that was broken off.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...launch import kernel_env
from ..channel.messages import NodeError
from .kernel_folder import KernelFolder, all_kernels

_NAME = "starting"


@contextmanager
def lock(folder: KernelFolder) -> Iterator[int]:
    """Create the folder of a kernel, and provide a file descriptor that locks it for a start.

    Wait for the end of another start of the kernel, and for the removal of what another start has left.
    """
    while True:
        folder.make()
        with suppress(FileNotFoundError):  # of a folder that is removed meanwhile
            descriptor = os.open(folder.path / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_in_place(folder, descriptor):
                break
            os.close(descriptor)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def record(descriptor: int, client: str, start: str) -> None:
    """Record the client and the id of a start, before the client is registered."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"client": client, "start": start}).encode(), 0)


def discard(folder: KernelFolder, start: str = "", unregister: bool = True) -> None:
    """Remove the folder of a start that was broken off, and unregister its client. Raise NodeError during a start.

    The start is that of this id only, or any start for "".
    """
    with suppress(FileNotFoundError, NotADirectoryError), open(folder.path / _NAME, "rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NodeError(f"the kernel {folder.kernel} starts at present", "still_runs") from None
        if not _is_in_place(folder, file.fileno()) or folder.exists():
            return
        found = _recorded(file.read())
        if start in ("", found.get("start")):
            if unregister and "client" in found:
                kernel_env.unregister_client(kernel_env.Identity(found["client"], ""))
            folder.remove()


def discard_all() -> None:
    """Remove the folders of all starts that were broken off, and unregister their clients."""
    for folder in all_kernels():
        with suppress(NodeError, OSError):
            discard(folder)


def _is_in_place(folder: KernelFolder, descriptor: int) -> bool:
    """Return whether the folder still has this file, and not that of a later start or none."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(folder.path / _NAME))
    return False


def _recorded(text: bytes) -> dict[str, str]:
    """Return the client and the id of the start, or an empty dict for a start that had not recorded them."""
    with suppress(ValueError):
        found: dict[str, str] = json.loads(text)
        return found
    return {}
