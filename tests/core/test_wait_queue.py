"""Tests of the queue of a device: its heaps give the order of a full sort, with few heap operations for each change."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.queueing import wait_queue as wait_queue_module
from jupyter_gpushare.core.queueing.policies import Policy
from jupyter_gpushare.core.queueing.wait_queue import WaitQueue
from jupyter_gpushare.core.state.model import Client

from ..support import tier

MAX_WAIT = 10.0


class Used(Policy):
    """Policy with the least use first."""

    name = "used"

    def __init__(self) -> None:
        super().__init__(Settings())
        self.used: dict[str, float] = {}

    def key(self, client: Client, *_: float) -> float:
        return self.used.get(client.id, 0.0)


@dataclass
class Ready:
    at: float

    def ready_at(self) -> float:
        return self.at


def make(number: int) -> Client:
    return Client(f"c{number}", "t", "", Quota(), 1, number)


class AnyQueue(RuleBasedStateMachine):
    """Clients that enter, leave, are limited, change their class, and run, while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Used()
        self.queue = WaitQueue(self.policy, MAX_WAIT)
        self.now = 0.0
        self.tickets = 0
        self.clients = [make(number) for number in range(7)]
        self.keys: dict[str, float] = {}  # by client that is in the queue and ready

    def pick(self, data: st.DataObject, waiting: bool) -> Client:
        numbers = [number for number, client in enumerate(self.clients) if (client in self.queue) == waiting]
        return self.clients[data.draw(st.sampled_from(numbers), label="client")]

    def add(self, client: Client) -> None:
        self.keys.pop(client.id, None)
        self.queue.add(client, self.now)
        self.let_in()

    def let_in(self) -> None:
        for client in self.clients:
            if client in self.queue and client.ready_at <= self.now:
                self.keys.setdefault(client.id, self.policy.key(client))

    @precondition(lambda self: len(list(self.queue.clients)) < len(self.clients))
    @rule(data=st.data(), offline=st.booleans(), pause=st.sampled_from([None, None, 0.5, 3.0, 20.0]))
    def come(self, data: st.DataObject, offline: bool, pause: float | None) -> None:
        client = self.pick(data, waiting=False)
        self.tickets += 1
        client.queue_sequence, client.waiting_since = self.tickets, self.now
        client.quota = Quota(service="offline" if offline else "online")
        client.time_limit = None if pause is None else Ready(self.now + pause)  # type: ignore[assignment]
        self.add(client)

    @precondition(lambda self: any(self.queue.clients))
    @rule(data=st.data(), offline=st.booleans(), pause=st.sampled_from([None, 0.1, 1.0, 5.0]))
    def another_quota(self, data: st.DataObject, offline: bool, pause: float | None) -> None:
        client = self.pick(data, waiting=True)
        client.quota = Quota(service="offline" if offline else "online")
        client.time_limit = None if pause is None else Ready(self.now + pause)  # type: ignore[assignment]
        self.add(client)

    @precondition(lambda self: any(self.queue.clients))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = self.pick(data, waiting=True)
        self.queue.remove(client)
        client.waiting_since = None
        self.keys.pop(client.id, None)

    @precondition(lambda self: len(list(self.queue.clients)) < len(self.clients))
    @rule(data=st.data(), seconds=st.sampled_from([0.5, 1.0, 2.5]))
    def run_a_while(self, data: st.DataObject, seconds: float) -> None:
        client = self.pick(data, waiting=False)
        self.policy.used[client.id] = self.policy.used.get(client.id, 0.0) + seconds

    @rule(seconds=st.sampled_from([0.3, 1.0, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.queue.update_eligibility(self.now)
        self.let_in()

    def sort_key(self, client: Client) -> tuple[Any, ...]:
        since = client.waiting_since
        if client.id not in self.keys:
            return (2, client.ready_at, client.queue_sequence)
        if since is not None and since + MAX_WAIT <= self.now:
            return (client.service_rank, 0, client.queue_sequence)
        return (client.service_rank, 1, self.keys[client.id], client.queue_sequence)

    @invariant()
    def as_if_sorted(self) -> None:
        expected = sorted(self.queue.clients, key=self.sort_key)
        ready = [client for client in expected if client.id in self.keys]
        assert len(self.queue) == len(ready)
        assert self.queue.head(self.now) is (ready[0] if ready else None)
        assert self.queue.in_order(self.now) == expected
        pauses = [client.ready_at for client in expected if client.id not in self.keys]
        assert self.queue.next_ready_at() == min(pauses, default=None)
        for service_rank in (0, 1):
            since = [client.waiting_since for client in ready if client.service_rank == service_rank]
            assert self.queue.starvation_deadline(service_rank) == min(since, default=float("inf")) + MAX_WAIT  # type: ignore[type-var]


AnyQueue.TestCase.settings = settings(
    max_examples=tier.strength(60, 1500), stateful_step_count=30, deadline=None, derandomize=not tier.NIGHTLY
)
TestAnyQueue = AnyQueue.TestCase


@pytest.mark.parametrize("count", [10, 100, 3000])
def test_a_few_heap_operations_per_turn_however_long_the_queue(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The head leaves, runs, and waits again. The cost of a decision is that of a few heap operations."""
    operations = 0

    def counted(name: str) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal operations
            operations += 1
            return getattr(heapq, name)(*arguments)

        return call

    names = ("heappush", "heappop", "heapreplace")
    monkeypatch.setattr(wait_queue_module, "heapq", SimpleNamespace(**{name: counted(name) for name in names}))
    choose = random.Random(1)
    policy = Used()
    queue = WaitQueue(policy, MAX_WAIT)
    now, tickets = 0.0, 0
    for number in range(count):
        client = make(number)
        tickets += 1
        client.queue_sequence, client.waiting_since = tickets, now
        queue.add(client, now)
    operations = 0
    turns = 3 * count
    for _ in range(turns):
        head = queue.head(now)
        assert head is not None
        queue.remove(head)
        now += 0.01
        policy.used[head.id] = policy.used.get(head.id, 0.0) + choose.uniform(0.1, 5.0)
        tickets += 1
        head.queue_sequence, head.waiting_since = tickets, now
        queue.add(head, now)
        queue.update_eligibility(now)
        queue.next_ready_at()
    assert operations <= 7 * turns
