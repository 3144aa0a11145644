"""Subscriptions: the rate of their snapshots, and requests while a snapshot is in progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from jupyter_gpushare.coordinator.views.snapshot_visibility import SnapshotEncoder
from jupyter_gpushare.coordinator.views.subscriptions import (
    MAX_SUBSCRIPTIONS,
    MIN_INTERVAL_SECONDS,
    SnapshotSteps,
    SnapshotSubscriptions,
)
from jupyter_gpushare.core.base.errors import Refused


@pytest.mark.parametrize(("cost", "least", "most"), [(0.0, 2, 11), (0.02, 1, 4)])
def test_snapshots_are_sent_after_turns(cost: float, least: int, most: int) -> None:
    """Slow snapshots are sent less often, so that most of the coordinator's time is for turns."""
    taken = 0

    def take(touched: set[str]) -> SnapshotSteps:
        nonlocal taken
        yield
        taken += 1
        until = time.monotonic() + cost
        while time.monotonic() < until:
            pass
        return {"devices": [], "clients": [], "config": {"taken": taken}, "coordinator": {}}

    async def follow() -> int:
        followers = SnapshotSubscriptions(take, dict)
        peer = Mock(user="ada", admin=True, is_congested=False)
        followers.subscribe(peer, lambda views: None)
        until = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < until:
            followers.schedule_publication()
            await asyncio.sleep(0.005)
        followers.close()
        return int(peer.send.call_count)

    assert least <= asyncio.run(follow()) <= most


def test_slow_subscriber_gets_its_snapshot_later_without_repeats_to_others() -> None:
    number = 0

    def take(touched: set[str]) -> SnapshotSteps:
        yield
        return {"devices": [], "clients": [], "config": {"number": number}, "coordinator": {}}

    async def follow() -> None:
        nonlocal number
        followers = SnapshotSubscriptions(take, dict)
        reads, sleeps = (
            Mock(user="ada", admin=True, is_congested=False),
            Mock(user="bob", admin=True, is_congested=True),
        )
        answers: list[SnapshotEncoder] = []
        for peer in (reads, sleeps):
            followers.subscribe(peer, answers.append)
        await wait_until(lambda: len(answers) == 2)
        number = 1
        followers.schedule_publication()
        await wait_until(lambda: reads.send.called)
        for _ in range(3):
            followers.schedule_publication()
            await asyncio.sleep(2 * MIN_INTERVAL_SECONDS)
        assert (reads.send.call_count, sleeps.send.call_count) == (1, 0)
        sleeps.is_congested = False
        await wait_until(lambda: sleeps.send.called)
        assert (reads.send.call_count, sleeps.send.call_count) == (1, 1)
        followers.close()

    async def wait_until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(follow(), 20))


def test_subscriptions_of_a_user_are_limited() -> None:
    """A publication goes to all subscriptions, and turns wait for the publication."""

    async def follow() -> None:
        followers = SnapshotSubscriptions(_nothing, dict)
        peers = [Mock(user="bob", admin=False) for _ in range(MAX_SUBSCRIPTIONS)]
        for peer in peers:
            followers.subscribe(peer, _ignore)
        followers.subscribe(peers[0], _ignore)  # a second request of one connection counts once
        one_more = Mock(user="bob", admin=False)
        with pytest.raises(Refused, match="32 subscriptions already"):
            followers.subscribe(one_more, _ignore)
        followers.subscribe(Mock(user="ada", admin=False), _ignore)
        followers.subscribe(Mock(user="bob", admin=True), _ignore)
        for peer in peers[:2]:
            followers.discard(peer)
        followers.subscribe(one_more, _ignore)
        followers.close()

    asyncio.run(follow())


def test_request_during_a_snapshot_gets_the_next_one() -> None:
    """All requests that come during one snapshot get the same next one."""
    began = 0

    def take(touched: set[str]) -> SnapshotSteps:
        nonlocal began
        began += 1
        number = began
        yield
        return {"devices": [], "clients": [], "config": {"number": number}, "coordinator": {}}

    async def ask() -> list[int]:
        followers = SnapshotSubscriptions(take, dict)
        answers: list[SnapshotEncoder] = []
        for _ in range(3):
            followers.request(None, answers.append)
        while len(answers) < 3:
            await asyncio.sleep(0)
        followers.close()
        return [views.status["config"]["number"] for views in answers]

    assert asyncio.run(asyncio.wait_for(ask(), 20)) == [1, 2, 2]


def _nothing(touched: set[str]) -> SnapshotSteps:
    yield
    return {"devices": [], "clients": [], "config": {}, "coordinator": {}}


def _ignore(views: SnapshotEncoder) -> None:
    pass
