"""Whatever peers send, and whatever their pages say: the coordinator goes on, and who behaves gets turns of its own."""

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

from jupyter_gpushare.core.policies import POLICIES
from jupyter_gpushare.wire import messages

from ..support import tier
from .crowd import MOST, Stranger
from .edge import Correct, Edge, bugs, descriptors, resident_bytes
from .lines import KINDS, Kind, Lines
from .scribbles import fickle_pages
from .virtual import VirtualLoop

MESSAGES = int(os.environ.get("GPUSHARE_TEST_MESSAGES", tier.strength("5000", "150000")))
SEED = int(os.environ.get("GPUSHARE_TEST_SEED", "1"))
EPISODE = 5000  # messages after which all strangers leave
DEVICE, OTHERS = "GPU-shared", [f"GPU-theirs-{number}" for number in range(6)]
GROWTH = 24 << 20  # bytes that the process may grow by, however many messages come
STRANGERS = (1001, 1002, 1003)


class Host:
    """One edge, two clients that behave, and a crowd that doesn't; if these are `admins`, they may do anything."""

    def __init__(self, edge: Edge, random: randoms.Random, admins: bool = False) -> None:
        self.edge, self.random, self.admins = edge, random, admins
        self.correct = [Correct(edge, f"correct-{name}", DEVICE) for name in "ab"]
        self.crowd: list[Stranger] = []
        self.lines = Lines(random)
        self.lines.clients += ["correct-a", "correct-b", *(f"stranger-{number}" for number in range(9))]
        self.lines.tokens += ["secret", "t"]
        self.lines.devices += [DEVICE, *OTHERS]

    def step(self) -> None:
        random = self.random
        if len(self.crowd) < MOST and random.random() < 0.1:
            uid = 0 if self.admins else random.choice(STRANGERS)
            self.crowd.append(Stranger(self.edge, random, self.lines, uid, [DEVICE, *OTHERS]))
        if self.crowd:
            stranger = random.choice(self.crowd)
            stranger.act()
            if stranger.connection is None:
                self.crowd.remove(stranger)
        self.edge.handle()
        if random.random() < 0.2:
            for _ in range(random.choice((1, 1, 10))):
                self.edge.pass_time(random.choice((0.0, 0.001, 0.01, 0.1)))
                self.look()
        self.look()

    def look(self) -> None:
        for process in self.correct:
            process.act()
        self.edge.handle()
        self.edge.check()
        if self.admins:
            return  # they may have let clients share the device
        running = [process.client for process in self.correct if process.running]
        assert len(running) < 2, f"{running} run at the same time"

    def all_leave(self) -> None:
        """Who behaves then has turns one after the other, as before, and nothing is left of the others."""
        for stranger in self.crowd:
            stranger.leave()
        self.crowd.clear()
        for _ in range(100):  # what they had sent is read first
            self.edge.handle()
        assert len(self.edge.peers) == len(self.correct)
        correct = {process.client for process in self.correct}
        for client in list(self.edge.daemon.members):
            if client not in correct:
                self.edge.ask(messages.Unregister(client=client))
        turns = [process.turns for process in self.correct]
        for _ in range(400):
            self.edge.pass_time(0.05)
            self.look()
        for process, before in zip(self.correct, turns, strict=True):
            assert process.turns >= before + 2, f"{process.client} gets no turns: {self.edge.daemon.scheduler.story()}"
        assert set(self.edge.daemon.members) == correct
        shown = {client["id"]: client for client in self.edge.ask(messages.Status())["clients"]}
        for client in correct:
            assert not shown[client]["suspended"] and shown[client]["hold_seconds_left"] is None
            assert shown[client]["quota"]["share"] == 0 and shown[client]["quota"]["memory"] is None

    def close(self) -> None:
        for stranger in self.crowd:
            stranger.leave()
        for process in self.correct:
            process.close()


@pytest.fixture
def loop() -> VirtualLoop:
    return VirtualLoop()


@pytest.fixture
def edge(loop: VirtualLoop, tmp_path: Path) -> Iterator[Edge]:
    made = Edge(loop, tmp_path, policy="fcfs", sharing="exclusive", time_quantum=0.5, idle_release=10.0)
    yield made
    made.close()


@pytest.mark.timeout(120 + MESSAGES // 100)
def test_any_messages_of_strangers(edge: Edge) -> None:
    """`GPUSHARE_TEST_MESSAGES` of them, by `GPUSHARE_TEST_SEED`."""
    random = randoms.Random(SEED)
    host = Host(edge, random)
    sizes: list[tuple[int, int]] = []
    policies = itertools.cycle(POLICIES)
    with bugs() as found, fickle_pages(random):
        while edge.lines < MESSAGES:
            edge.ask(messages.Config(changes={"policy": next(policies)}))
            end = edge.lines + EPISODE
            while edge.lines < end:
                host.step()
                assert not found, f"seed {SEED}, after {edge.lines} messages: {found[0]}"
            host.all_leave()
            gc.collect()
            sizes.append((resident_bytes(), descriptors()))
    grown = max(size for size, _ in sizes) - sizes[0][0]
    print(
        f"{edge.lines} messages (seed {SEED}); it has grown by {grown >> 10} KiB, and has {descriptors()} descriptors"
    )
    assert grown < GROWTH
    assert {number for _, number in sizes} == {sizes[0][1]}
    assert edge.stops == 0, "only admins may stop it"
    host.close()


@pytest.mark.timeout(120 + MESSAGES // 100)
def test_any_messages_of_admins(edge: Edge) -> None:
    """They may spoil everything but the coordinator itself."""
    random = randoms.Random(SEED)
    host = Host(edge, random, admins=True)
    with bugs() as found, fickle_pages(random):
        while edge.lines < MESSAGES // 5:
            host.step()
            assert not found, f"seed {SEED}, after {edge.lines} messages: {found[0]}"
    assert edge.ask(messages.Status())
    host.close()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(KINDS), max_size=4), st.randoms(use_true_random=False))
def test_any_few_messages_of_a_process(edge: Edge, kinds: list[Kind], random: randoms.Random) -> None:
    """What fails here, hypothesis makes as short as it can be."""
    lines = Lines(random)
    lines.clients += ["correct-a"]
    with bugs() as found, contextlib.closing(Correct(edge, "correct-a", DEVICE)) as process:
        process.act()
        edge.handle()
        connection = process.link.connection
        assert connection
        for kind in kinds:
            with contextlib.suppress(OSError):  # it may have been sent away
                connection.send(lines.line(kind) + b"\n")
            edge.handle()
        edge.check()
        assert not found, found[0]
    edge.handle()


def test_every_message_is_made_as_it_is_declared() -> None:
    """Or a new kind of field would only ever be refused."""
    lines = Lines(randoms.Random(1))
    decoder = msgspec.json.Decoder(messages.Incoming)
    for kind in KINDS:
        taken = 0
        for _ in range(100):
            with contextlib.suppress(msgspec.ValidationError):
                taken += isinstance(decoder.decode(lines.message(kind)), kind)
        assert taken > 50, kind
