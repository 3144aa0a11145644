"""Recording of the packets that the programs of this machine send each other."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest


@contextlib.contextmanager
def recorded_packets() -> Iterator[Callable[[], bytes]]:
    """Record all packets of the loopback interface, and yield a function that returns them. Skip the test if denied."""
    try:
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        raw.bind(("lo", 0))
    except OSError as error:
        pytest.skip(f"no packets can be recorded: {error}")
    packets: list[bytes] = []
    is_over = threading.Event()
    raw.settimeout(0.1)

    def record() -> None:
        while not is_over.is_set():
            with contextlib.suppress(TimeoutError):
                packets.append(raw.recv(1 << 17))

    thread = threading.Thread(target=record)
    thread.start()
    try:
        yield lambda: b"".join(packets)
    finally:
        is_over.set()
        thread.join()
        raw.close()
