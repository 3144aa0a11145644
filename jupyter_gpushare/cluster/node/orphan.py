"""Steps before the end of an orphan, a kernel that no Jupyter server has adopted for too long.

    program.py jupyter_gpushare.cluster.node.orphan SOCKET CLIENT STEP

The keeper of the kernel runs each step. The step `evict` moves the memory of the kernel off the devices. A server may
adopt the kernel meanwhile, and then the kernel goes on. The step `record` lets the coordinator record the end in the
usage and in the audit log.
"""

from __future__ import annotations

import sys
import time

from ...wire import messages
from ...wire.client import Client, CoordinatorError

_EVICTION_SECONDS = 30.0
_POLL_SECONDS = 0.1


def evict(coordinator: Client, client: str) -> None:
    """Move the client's memory off the devices, and wait for that. Raise CoordinatorError."""
    before = _resident(coordinator, client)
    size = coordinator.request(messages.Evict(client=client))["bytes"]
    deadline = time.monotonic() + _EVICTION_SECONDS
    while size and _resident(coordinator, client) > before - size and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _resident(coordinator: Client, client: str) -> int:
    """Return the bytes on the devices; 0 for a client that has ended."""
    clients = coordinator.request(messages.Status())["clients"]
    return sum(int(one["resident"]) for one in clients if one["id"] == client)


def main(socket: str, client: str, step: str) -> None:
    """Run a step. A coordinator that does not answer has nothing to evict and records nothing."""
    try:
        with Client(socket) as coordinator:
            if step == "evict":
                evict(coordinator, client)
            else:
                coordinator.request(messages.Unregister(client=client, is_orphan=True))
    except CoordinatorError as error:
        print(f"gpushare: the end of an orphan: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
