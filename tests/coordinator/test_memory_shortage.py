"""Requests for room on a full device, which are answered by number and refused only if no memory can be evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_gpushare.agent.pages import create_memfd
from jupyter_gpushare.coordinator.clients.client_runtime import ClientRuntime
from jupyter_gpushare.coordinator.clients.process_handle import ProcessHandle
from jupyter_gpushare.coordinator.engine.page_sync import PageSync
from jupyter_gpushare.core import Scheduler
from jupyter_gpushare.core.base.device_info import DeviceInfo
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.wire.page import Page

MIB = 1 << 20
DEVICE = "GPU-one"  # of 1 GiB


class Bench:
    """Page sync between real pages and a real scheduler, without sockets. `meanwhile` runs after each event."""

    def __init__(self) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(Settings())
        self.members: dict[str, ClientRuntime] = {}
        self.ports: dict[str, ProcessHandle] = {}
        self.meanwhile: Callable[[], None] = lambda: None
        self.levels = PageSync(self.scheduler, self.members, self.feed, lambda: self.now)
        self.feed(ev.DeviceFound(DeviceInfo(DEVICE, "Fake GPU", 1 << 30, True)))

    def feed(self, event: ev.Event) -> None:
        self.scheduler.handle(event, self.now)
        self.meanwhile()

    def process(self, name: str, mib: int, pinned: int = 0, runs: bool = True) -> ProcessHandle:
        """Add a client with one process that has `mib` MiB on the device."""
        number = len(self.ports) + 1
        page = Page(create_memfd("gpushare_page"))
        hello: Any = SimpleNamespace(devices=[SimpleNamespace(uuid=DEVICE)])
        port = ProcessHandle(number, cast(Any, SimpleNamespace(send=lambda *message: True)), page, hello)
        member = self.members[name] = ClientRuntime(name, "")
        member.processes[number] = port
        self.ports[name] = port
        self.feed(ev.ClientRegistered(name, "1000", name, Quota(), 1))
        self.feed(ev.ProcessJoined(name, number, (DEVICE,)))
        holds(port, mib, pinned)
        self.levels.read_memory(member)
        if runs:
            self.feed(ev.GateWaitStarted(number))
            permit = self.scheduler.clients[name].permit
            assert permit and permit.may
            self.feed(ev.TurnEntered(number, permit.turn, self.now))
            assert self.scheduler.clients[name].phase == "running"
        return port

    def answer(self, port: ProcessHandle) -> int:
        """Handle the process's request for room, and return the number of its last refused request, or 0."""
        self.levels.handle_memory_shortage([port])
        return int(port.page.control.refused_request_seq)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    for port in made.ports.values():
        port.page.close()


def holds(port: ProcessHandle, mib: int, pinned: int = 0) -> None:
    report = port.page.report
    report.allocated = report.resident = mib * MIB
    report.unmovable = pinned * MIB


def asks(port: ProcessHandle, mib: int) -> int:
    """Report in the page that an allocation of `mib` MiB finds the device full, and return the request's number."""
    port.page.report.allocated += mib * MIB
    port.page.report.resident += mib * MIB
    port.page.report.unmet_bytes = mib * MIB
    port.page.report.unmet_request_seq += 1
    return int(port.page.report.unmet_request_seq)


def test_a_request_that_comes_meanwhile_does_not_get_the_answer_to_the_one_before(bench: Bench) -> None:
    """The first request cannot be met. While the coordinator handles it, the program frees memory and requests less."""
    port = bench.process("a", 400)
    bench.process("plain", 600, pinned=600, runs=False)
    bench.process("idle", 20, runs=False)
    first = asks(port, 100)

    def another() -> None:
        bench.meanwhile = lambda: None
        holds(port, 100)
        asks(port, 50)

    bench.meanwhile = another
    assert bench.answer(port) == first
    assert bench.answer(port) == first, "the second request was refused, although the idle client can be evicted"


def test_a_request_that_was_met_meanwhile_and_followed_by_another(bench: Bench) -> None:
    port = bench.process("a", 480)
    bench.process("b", 500)
    asks(port, 16)
    bench.process("c", 0, runs=False)

    def another() -> None:
        bench.meanwhile = lambda: None
        port.page.report.unmet_request_seq += 1
        port.page.report.unmet_bytes = 0
        asks(port, 16)

    bench.meanwhile = another
    bench.answer(port)
    assert bench.answer(port) == 0


def test_colocated_clients_are_separated_and_the_request_waits(bench: Bench) -> None:
    port, other = bench.process("a", 480), bench.process("b", 464)
    asks(port, 16)
    assert bench.answer(port) == 0
    assert {name: client.phase for name, client in bench.scheduler.clients.items()} == {"a": "running", "b": "draining"}
    bench.feed(ev.TurnLeft(other.number, bench.scheduler.clients["b"].grant.turn))  # type: ignore[union-attr]
    assert bench.answer(port) == 0, "the request was refused before the memory of b was evicted"


def test_request_is_refused_if_evictions_do_not_suffice(bench: Bench) -> None:
    """A foreign process has the rest of the device."""
    port, idle = bench.process("a", 400), bench.process("idle", 50, runs=False)
    number = asks(port, 100)
    assert bench.answer(port) == 0
    assert bench.scheduler.residency.target("idle") == 0
    idle.page.report.resident = 0
    assert bench.answer(port) == number


def test_request_stops_waiting_for_a_stuck_eviction(bench: Bench) -> None:
    port = bench.process("a", 400)
    bench.process("stopped", 50, runs=False)
    number = asks(port, 100)
    for _ in range(14):
        assert bench.answer(port) == 0
        bench.now += 1.0
    bench.now += 2.0
    assert bench.answer(port) == number


def test_impossible_request_is_refused_at_once(bench: Bench) -> None:
    port = bench.process("a", 100)
    bench.process("b", 300)
    bench.process("plain", 200, pinned=200, runs=False)
    number = asks(port, 725)
    assert bench.answer(port) == number
    assert {bench.scheduler.clients[name].phase for name in ("a", "b")} == {"running"}


def test_request_is_refused_after_a_fresh_sample_of_the_pages(bench: Bench) -> None:
    """The client in mode plain has allocated since the last sample, so nothing can be evicted and no turn must end."""
    port, plain = bench.process("a", 100), bench.process("plain", 0, runs=False)
    bench.process("b", 100)
    holds(plain, 700, pinned=700)
    number = asks(port, 300)
    assert bench.answer(port) == number
    assert {bench.scheduler.clients[name].phase for name in ("a", "b")} == {"running"}


def test_nothing_is_refused_after_the_turn(bench: Bench) -> None:
    """The process repeats the request in its next turn."""
    port = bench.process("a", 400)
    bench.process("plain", 600, pinned=600, runs=False)
    bench.feed(ev.ReleaseRequested("a"))
    asks(port, 100)
    assert bench.answer(port) == 0
