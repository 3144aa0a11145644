"""Connections on one event loop, where no flood of messages on one delays the messages on another."""

from __future__ import annotations

import asyncio
import logging
import socket
import time

import pytest

from jupyter_gpushare.coordinator.transport.connection import Connection
from jupyter_gpushare.coordinator.transport.log_throttle import MAX_RECORDS, LogThrottle
from jupyter_gpushare.coordinator.transport.peer_identity import Identity
from jupyter_gpushare.coordinator.transport.rate_limits import UserBudget


def test_messages_of_connections_interleave() -> None:
    async def hear() -> list[str]:
        heard: list[str] = []
        peers, ends = [], []
        for name in ("flood", "other"):
            ours, theirs = socket.socketpair()
            theirs.sendall(b"{}\n" * (1000 if name == "flood" else 40))
            ends.append(theirs)
            peers.append(
                Connection(ours, Identity(name, False, 1, 1), lambda peer, _: heard.append(peer.user), lambda _: None)
            )
        while len(heard) < 1040:
            await asyncio.sleep(0)
        for peer, end in zip(peers, ends, strict=True):
            peer.drop()
            end.close()
        return heard

    heard = asyncio.run(hear())
    others = [place for place, name in enumerate(heard) if name == "other"]
    assert others[0] <= 16 and others[-1] <= 3 * 16 + 40


@pytest.mark.parametrize(("admin", "least", "most"), [(False, 0.15, 0.3), (True, 0.9, 1.0)])
def test_one_users_messages_take_only_a_part_of_the_time(admin: bool, least: float, most: float) -> None:
    """The limit counts all connections of a user, even if each message takes long."""

    async def hear() -> float:
        loop = asyncio.get_running_loop()
        taken = 0.0

        def answer(*_: object) -> None:
            nonlocal taken
            began = time.monotonic()
            while time.monotonic() < began + 0.005:
                pass
            taken += time.monotonic() - began

        ledger, peers, ends = UserBudget(), [], []
        for _ in range(8):
            ours, theirs = socket.socketpair()
            theirs.sendall(b"{}\n" * 500)
            ends.append(theirs)
            peers.append(Connection(ours, Identity("flood", admin, 1, 1), answer, lambda _: None, ledger))
        began = loop.time()
        await asyncio.sleep(1.0)
        part = taken / (loop.time() - began)
        for peer, end in zip(peers, ends, strict=True):
            peer.drop()
            end.close()
        return part

    assert least < asyncio.run(hear()) < most


def test_repeated_log_records_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Records with another message or about another user still pass."""

    async def log() -> None:
        logger = logging.getLogger("jupyter_gpushare.test")
        ours, theirs = socket.socketpair()
        one, two = (
            Connection(ours.dup(), Identity(name, False, 7, 7), lambda *_: None, lambda _: None) for name in "ab"
        )
        caplog.handler.addFilter(quiet := LogThrottle())
        try:
            for _ in range(MAX_RECORDS + 50):
                logger.warning("%s dropped: %s", one, "why")
            logger.warning("%s dropped: %s", two, "why")
            logger.warning("%s refused: %s", one, "why")
            logger.error("bug: %s", one)
        finally:
            caplog.handler.removeFilter(quiet)
            for peer in (one, two):
                peer.drop()
            ours.close()
            theirs.close()

    asyncio.run(log())
    assert len(caplog.records) == MAX_RECORDS + 3
    assert "similar records are suppressed" in caplog.records[MAX_RECORDS - 1].getMessage()
    assert [record.getMessage() for record in caplog.records[MAX_RECORDS:]] == [
        "pid 7 (user b) dropped: why",
        "pid 7 (user a) refused: why",
        "bug: pid 7 (user a)",
    ]
