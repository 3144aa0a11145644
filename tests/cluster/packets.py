"""Recording of the packets that the programs of this machine send each other."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from ..support.polling import wait_until

SO_RCVBUFFORCE = 33
BUFFER_BYTES = 64 << 20  # for the packets of all tests that run meanwhile, while the recording waits for a processor


@contextlib.contextmanager
def recorded_packets() -> Iterator[Callable[[], bytes]]:
    """Record all packets of the loopback interface, and yield a function that returns those until its call.

    Skip the test if denied.
    """
    try:
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        with contextlib.suppress(PermissionError):
            raw.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
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

    def recorded() -> bytes:
        last, place = os.urandom(16), ("127.0.0.1", 9)  # a port for packets that no program needs
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(last, place)
        wait_until(lambda: any(last in packet for packet in packets), interval=0.05)
        return b"".join(packets)

    thread = threading.Thread(target=record)
    thread.start()
    try:
        yield recorded
    finally:
        is_over.set()
        thread.join()
        raw.close()
