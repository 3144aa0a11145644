"""Tests of subscriptions: the rate of snapshots, slow subscribers, limits, and requests during a snapshot."""

from __future__ import annotations

import asyncio
import contextlib
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

from ..hostile.virtual_loop import VirtualLoop


@pytest.mark.parametrize(("cost", "min_count", "max_count"), [(0.0, 2, 11), (0.02, 1, 4)])
def test_snapshots_are_sent_after_turns(cost: float, min_count: int, max_count: int) -> None:
    """Slow snapshots are sent less often, so that most of the coordinator's time is for turns."""
    loop = VirtualLoop()
    taken = 0

    def build(changed_clients: set[str]) -> SnapshotSteps:
        nonlocal taken
        yield
        taken += 1
        loop.wait(cost)
        return {"devices": [], "clients": [], "config": {"taken": taken}, "coordinator": {}}

    async def follow() -> int:
        subscriptions = SnapshotSubscriptions(build, dict)
        connection = Mock(user="ada", admin=True, is_congested=False)
        subscriptions.subscribe(connection, lambda views: None)
        until = loop.time() + 1.0
        while loop.time() < until:
            subscriptions.schedule_publication()
            await asyncio.sleep(0.005)
        subscriptions.close()
        return int(connection.send.call_count)

    with contextlib.closing(loop):
        assert min_count <= loop.run_until_complete(follow()) <= max_count


def test_slow_subscriber_gets_its_snapshot_later_without_repeats_to_others() -> None:
    number = 0

    def build(changed_clients: set[str]) -> SnapshotSteps:
        yield
        return {"devices": [], "clients": [], "config": {"number": number}, "coordinator": {}}

    async def follow() -> None:
        nonlocal number
        subscriptions = SnapshotSubscriptions(build, dict)
        ready, congested = (
            Mock(user="ada", admin=True, is_congested=False),
            Mock(user="bob", admin=True, is_congested=True),
        )
        answers: list[SnapshotEncoder] = []
        for connection in (ready, congested):
            subscriptions.subscribe(connection, answers.append)
        await wait_until(lambda: len(answers) == 2)
        number = 1
        subscriptions.schedule_publication()
        await wait_until(lambda: ready.send.called)
        for _ in range(3):
            subscriptions.schedule_publication()
            await asyncio.sleep(2 * MIN_INTERVAL_SECONDS)
        assert (ready.send.call_count, congested.send.call_count) == (1, 0)
        congested.is_congested = False
        await wait_until(lambda: congested.send.called)
        assert (ready.send.call_count, congested.send.call_count) == (1, 1)
        subscriptions.close()

    async def wait_until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(follow(), 20))


def test_subscriptions_of_a_user_are_limited() -> None:
    """A publication goes to all subscriptions, and turns wait for the publication."""

    async def follow() -> None:
        subscriptions = SnapshotSubscriptions(_nothing, dict)
        connections = [Mock(user="bob", admin=False) for _ in range(MAX_SUBSCRIPTIONS)]
        for connection in connections:
            subscriptions.subscribe(connection, _ignore)
        subscriptions.subscribe(connections[0], _ignore)  # a second request of one connection counts once
        one_more = Mock(user="bob", admin=False)
        with pytest.raises(Refused, match="32 subscriptions already"):
            subscriptions.subscribe(one_more, _ignore)
        subscriptions.subscribe(Mock(user="ada", admin=False), _ignore)
        subscriptions.subscribe(Mock(user="bob", admin=True), _ignore)
        for connection in connections[:2]:
            subscriptions.discard(connection)
        subscriptions.subscribe(one_more, _ignore)
        subscriptions.close()

    asyncio.run(follow())


def test_request_during_a_snapshot_gets_the_next_one() -> None:
    """All requests that come during one snapshot get the same next one."""
    snapshot_count = 0

    def build(changed_clients: set[str]) -> SnapshotSteps:
        nonlocal snapshot_count
        snapshot_count += 1
        number = snapshot_count
        yield
        return {"devices": [], "clients": [], "config": {"number": number}, "coordinator": {}}

    async def ask() -> list[int]:
        subscriptions = SnapshotSubscriptions(build, dict)
        answers: list[SnapshotEncoder] = []
        for _ in range(3):
            subscriptions.request(None, answers.append)
        while len(answers) < 3:
            await asyncio.sleep(0)
        subscriptions.close()
        return [views.status["config"]["number"] for views in answers]

    assert asyncio.run(asyncio.wait_for(ask(), 20)) == [1, 2, 2]


def _nothing(changed_clients: set[str]) -> SnapshotSteps:
    yield
    return {"devices": [], "clients": [], "config": {}, "coordinator": {}}


def _ignore(views: SnapshotEncoder) -> None:
    pass
