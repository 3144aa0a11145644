"""Tests of random messages and pages of hostile clients, during which well-behaved clients must get turns."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random as randoms
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_gpushare.core.queueing.policies import POLICIES
from jupyter_gpushare.wire import messages

from ..support import tier
from .hostile_clients import MAX_CLIENTS, HostileClient
from .in_process_coordinator import InProcessCoordinator, WellBehavedClient, bugs, descriptors, resident_bytes
from .message_generator import KINDS, Kind, MessageGenerator
from .page_corruption import changing_pages
from .virtual_loop import VirtualLoop

MESSAGES = int(os.environ.get("GPUSHARE_TEST_MESSAGES", tier.strength("5000", "150000")))
SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))
MESSAGES_PER_EPISODE = 5000  # after which all hostile clients disconnect
DEVICE, OTHERS = "GPU-shared", [f"GPU-theirs-{number}" for number in range(6)]
MAX_GROWTH_BYTES = 24 << 20  # of the process, for any number of messages
HOSTILE_UIDS = (1001, 1002, 1003)


class Host:
    """Coordinator with two well-behaved clients and random hostile clients, which may be `admins`."""

    def __init__(self, in_process: InProcessCoordinator, random: randoms.Random, admins: bool = False) -> None:
        self.in_process, self.random, self.admins = in_process, random, admins
        self.well_behaved = [WellBehavedClient(in_process, f"well-behaved-{name}", DEVICE) for name in "ab"]
        self.hostile_clients: list[HostileClient] = []
        self.lines = MessageGenerator(random)
        self.lines.clients += ["well-behaved-a", "well-behaved-b", *(f"hostile-{number}" for number in range(9))]
        self.lines.tokens += ["secret", "t"]
        self.lines.devices += [DEVICE, *OTHERS]

    def step(self) -> None:
        random = self.random
        if len(self.hostile_clients) < MAX_CLIENTS and random.random() < 0.1:
            uid = 0 if self.admins else random.choice(HOSTILE_UIDS)
            self.hostile_clients.append(HostileClient(self.in_process, random, self.lines, uid, [DEVICE, *OTHERS]))
        if self.hostile_clients:
            hostile_client = random.choice(self.hostile_clients)
            hostile_client.act()
            if hostile_client.connection is None:
                self.hostile_clients.remove(hostile_client)
        self.in_process.handle_pending()
        if random.random() < 0.2:
            for _ in range(random.choice((1, 1, 10))):
                self.in_process.pass_time(random.choice((0.0, 0.001, 0.01, 0.1)))
                self.check()
        self.check()

    def check(self) -> None:
        for process in self.well_behaved:
            process.act()
        self.in_process.handle_pending()
        self.in_process.check()
        if self.admins:
            return  # admins may have changed the settings so that clients are colocated
        running = [process.client for process in self.well_behaved if process.running]
        assert len(running) < 2, f"{running} run at the same time"

    def all_leave(self) -> None:
        """Disconnect the hostile clients, and check that only the well-behaved clients stay and have turns."""
        for hostile_client in self.hostile_clients:
            hostile_client.leave()
        self.hostile_clients.clear()
        for _ in range(100):  # until the coordinator has read all sent messages
            self.in_process.handle_pending()
        assert len(self.in_process.connections) == len(self.well_behaved)
        well_behaved_ids = {process.client for process in self.well_behaved}
        for client in list(self.in_process.coordinator.state.runtimes):
            if client not in well_behaved_ids:
                self.in_process.request(messages.Unregister(client=client))
        turns = [process.turns for process in self.well_behaved]
        for _ in range(400):
            self.in_process.pass_time(0.05)
            self.check()
        for process, before in zip(self.well_behaved, turns, strict=True):
            assert process.turns >= before + 2, (
                f"{process.client} gets no turns: {self.in_process.coordinator.state.scheduler.event_log()}"
            )
        assert set(self.in_process.coordinator.state.runtimes) == well_behaved_ids
        shown = {client["id"]: client for client in self.in_process.request(messages.Status())["clients"]}
        for client in well_behaved_ids:
            assert not shown[client]["suspended"] and shown[client]["hold_seconds_left"] is None
            assert shown[client]["quota"]["share"] == 0 and shown[client]["quota"]["memory"] is None

    def close(self) -> None:
        for hostile_client in self.hostile_clients:
            hostile_client.leave()
        for process in self.well_behaved:
            process.close()


@pytest.fixture
def loop() -> VirtualLoop:
    return VirtualLoop()


@pytest.fixture
def in_process(loop: VirtualLoop, tmp_path: Path) -> Iterator[InProcessCoordinator]:
    made = InProcessCoordinator(loop, tmp_path, policy="fcfs", sharing="exclusive", time_quantum=0.5, idle_release=10.0)
    yield made
    made.close()


@pytest.mark.timeout(120 + MESSAGES // 100)
def test_random_messages_of_hostile_users_leave_the_coordinator_working(in_process: InProcessCoordinator) -> None:
    """`GPUSHARE_TEST_MESSAGES` is the number of messages, and `GPUSHARE_TEST_SEED` the seed."""
    random = randoms.Random(SEED)
    host = Host(in_process, random)
    sizes: list[tuple[int, int]] = []
    policies = itertools.cycle(POLICIES)
    with bugs() as found, changing_pages(random):
        while in_process.lines < MESSAGES:
            in_process.request(messages.Config(changes={"policy": next(policies)}))
            end = in_process.lines + MESSAGES_PER_EPISODE
            while in_process.lines < end:
                host.step()
                assert not found, f"seed {SEED}, after {in_process.lines} messages: {found[0]}"
            host.all_leave()
            gc.collect()
            sizes.append((resident_bytes(), descriptors()))
    grown = max(size for size, _ in sizes) - sizes[0][0]
    print(f"{in_process.lines} messages (seed {SEED}); grown by {grown >> 10} KiB, {descriptors()} descriptors")
    assert grown < MAX_GROWTH_BYTES
    assert {number for _, number in sizes} == {sizes[0][1]}
    assert in_process.stops == 0, "a user without admin rights has stopped the coordinator"
    host.close()


@pytest.mark.timeout(120 + MESSAGES // 100)
def test_random_messages_of_admins_leave_the_coordinator_running(in_process: InProcessCoordinator) -> None:
    """Admins may change all settings and clients, and the coordinator must still run."""
    random = randoms.Random(SEED)
    host = Host(in_process, random, admins=True)
    with bugs() as found, changing_pages(random):
        while in_process.lines < MESSAGES // 5:
            host.step()
            assert not found, f"seed {SEED}, after {in_process.lines} messages: {found[0]}"
    assert in_process.request(messages.Status())
    host.close()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(KINDS), max_size=4), st.randoms(use_true_random=False))
def test_few_random_messages_of_a_process_are_handled(
    in_process: InProcessCoordinator, kinds: list[Kind], random: randoms.Random
) -> None:
    """Hypothesis shrinks a failing sequence."""
    lines = MessageGenerator(random)
    lines.clients += ["well-behaved-a"]
    with bugs() as found, contextlib.closing(WellBehavedClient(in_process, "well-behaved-a", DEVICE)) as process:
        process.act()
        in_process.handle_pending()
        connection = process.link.connection
        assert connection
        for kind in kinds:
            with contextlib.suppress(OSError):  # the coordinator may have dropped the connection
                connection.send(lines.line(kind) + b"\n")
            in_process.handle_pending()
        in_process.check()
        assert not found, found[0]
    in_process.handle_pending()


def test_message_generator_follows_the_declarations() -> None:
    """Otherwise all messages with a new kind of field would be invalid."""
    lines = MessageGenerator(randoms.Random(1))
    decoder = msgspec.json.Decoder(messages.Incoming)
    for kind in KINDS:
        valid = 0
        for _ in range(100):
            with contextlib.suppress(msgspec.ValidationError):
                valid += isinstance(decoder.decode(lines.message(kind)), kind)
        assert valid > 50, kind
