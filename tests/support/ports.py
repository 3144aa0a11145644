"""Ports that no other process takes between their choice and their use.

The kernel gives the ports of its own range to any process, so a test takes a port below that range.
"""

from __future__ import annotations

import os
import random
import socket

from jupyter_client.connect import LocalPortCache

FIRST, END = 10_000, 32_000  # the range of Linux's own ports begins at 32,768


class WorkerPorts(LocalPortCache):
    """Ports of one worker of the tests, in turn."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        size = (END - FIRST) // workers
        self._ports = range(FIRST + worker * size, FIRST + (worker + 1) * size)
        self._next = random.Random(os.getpid()).randrange(size)  # another run of the tests may go on beside this one

    def find_available_port(self, ip: str) -> int:
        """Return a port of `ip` that is free and that this function has not returned recently."""
        for _ in self._ports:
            port = self._ports[self._next]
            self._next = (self._next + 1) % len(self._ports)
            with socket.socket() as probe:
                try:
                    probe.bind((ip, port))
                except OSError:
                    continue
            return port
        raise OSError(f"no port among {self._ports[0]} to {self._ports[-1]} is free")


def free_port() -> int:
    return WorkerPorts.instance().find_available_port("127.0.0.1")
