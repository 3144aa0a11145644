"""Tests of connections on one event loop: order of messages, a user's part of the time, and repeated log records."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from jupyter_gpushare.coordinator.transport.connection import Connection
from jupyter_gpushare.coordinator.transport.log_throttle import MAX_RECORDS, LogThrottle
from jupyter_gpushare.coordinator.transport.peer_identity import Identity
from jupyter_gpushare.coordinator.transport.rate_limits import UserBudget

from ..hostile.virtual_loop import VirtualLoop


def test_messages_of_connections_interleave() -> None:
    async def receive() -> list[str]:
        received: list[str] = []
        connections, ends = [], []
        for name in ("flood", "other"):
            own_end, peer_end = socket.socketpair()
            peer_end.sendall(b"{}\n" * (1000 if name == "flood" else 40))
            ends.append(peer_end)
            connections.append(
                Connection(
                    own_end,
                    Identity(name, False, 1, 1),
                    lambda connection, _: received.append(connection.user),
                    lambda _: None,
                )
            )
        while len(received) < 1040:
            await asyncio.sleep(0)
        for connection, end in zip(connections, ends, strict=True):
            connection.drop()
            end.close()
        return received

    received = asyncio.run(receive())
    positions = [position for position, name in enumerate(received) if name == "other"]
    assert positions[0] <= 16 and positions[-1] <= 3 * 16 + 40


@pytest.mark.parametrize(("admin", "min_fraction", "max_fraction"), [(False, 0.15, 0.3), (True, 0.99, 1.0)])
def test_one_users_messages_take_only_a_part_of_the_time(admin: bool, min_fraction: float, max_fraction: float) -> None:
    """The limit counts all connections of a user, even if each message takes long."""
    loop = VirtualLoop()

    async def receive() -> float:
        busy = 0.0

        def answer(*_: object) -> None:
            nonlocal busy
            loop.wait(0.005)
            busy += 0.005

        budget, connections, ends = UserBudget(), [], []
        for _ in range(8):
            own_end, peer_end = socket.socketpair()
            peer_end.sendall(b"{}\n" * 500)
            ends.append(peer_end)
            connections.append(Connection(own_end, Identity("flood", admin, 1, 1), answer, lambda _: None, budget))
        started_at = loop.time()
        await asyncio.sleep(1.0)
        fraction = busy / (loop.time() - started_at)
        for connection, end in zip(connections, ends, strict=True):
            connection.drop()
            end.close()
        return fraction

    fraction = loop.run_until_complete(receive())
    loop.close()
    assert min_fraction <= fraction <= max_fraction + 1e-6
    assert loop.bugs == []


def test_repeated_log_records_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Records with another message or about another user still pass."""

    async def log() -> None:
        logger = logging.getLogger("jupyter_gpushare.test")
        own_end, peer_end = socket.socketpair()
        one, two = (
            Connection(own_end.dup(), Identity(name, False, 7, 7), lambda *_: None, lambda _: None) for name in "ab"
        )
        caplog.handler.addFilter(throttle := LogThrottle())
        try:
            for _ in range(MAX_RECORDS + 50):
                logger.warning("%s dropped: %s", one, "why")
            logger.warning("%s dropped: %s", two, "why")
            logger.warning("%s refused: %s", one, "why")
            logger.error("bug: %s", one)
        finally:
            caplog.handler.removeFilter(throttle)
            for connection in (one, two):
                connection.drop()
            own_end.close()
            peer_end.close()

    asyncio.run(log())
    assert len(caplog.records) == MAX_RECORDS + 3
    assert "similar records are suppressed" in caplog.records[MAX_RECORDS - 1].getMessage()
    assert [record.getMessage() for record in caplog.records[MAX_RECORDS:]] == [
        "pid 7 (user b) dropped: why",
        "pid 7 (user a) refused: why",
        "bug: pid 7 (user a)",
    ]
