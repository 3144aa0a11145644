"""Tests of colocated clients under the scheduler, on a device that they share in virtual time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare.core import Scheduler
from jupyter_gpushare.core.base.device_info import DeviceInfo
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.launch_budget import (
    ADAPTIVE,
    BLOCKS,
    DEVICE_SECONDS,
    MEASURING,
    SHARE,
    SURPLUS,
    LaunchBudget,
)
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.views.invariants import check

from ..support import tier

MS = 0.001
GIB = 1 << 30


@dataclass
class Program:
    """A program. During a cell, it demands the part `asks` of the device; a block of it costs `cost` device seconds."""

    name: str
    number: int
    asks: float = 1.0
    cost: float = 1e-6
    seen: float = 1.0  # the part of its work that is measured while it has less than a tenth of the device
    launches_as_demanded: bool = False  # its launches do not show its work, such as those that wait for the device
    step_rate: float = 0.0  # training steps that it marks in a second of work
    steps: float = 0.0
    turn: int = 0  # the turn that it is in
    is_waiting: bool = False  # it has reported that it waits
    left: int = 0  # the epoch under which it last left a turn
    budget: LaunchBudget | None = None
    blocks: float = 0.0
    worked: float = 0.0
    got: list[float] = field(default_factory=list)  # the part of the device in each millisecond

    @property
    def open(self) -> bool:
        return bool(self.turn)

    @property
    def demand(self) -> float:
        if not self.budget:
            return self.asks
        return min(self.asks, self.budget.rate * (self.cost if self.budget.unit == BLOCKS else 1.0))

    def lately(self, seconds: float) -> float:
        part = self.got[-round(seconds / MS) :]
        return sum(part) / len(part)


def of(sharing: str) -> Settings:
    return Settings(sharing=sharing, policy="burst_share", time_quantum=1.0)


class Host:
    """A host with the default settings, unless `sharing` is given.

    `efficiency`: the work that the device does, as a part of its full work, when the demand exceeds the device.
    """

    def __init__(self, sharing: str = "", efficiency: float = 1.0) -> None:
        self.scheduler = Scheduler(of(sharing) if sharing else Settings())
        self.efficiency = efficiency
        self.programs: dict[str, Program] = {}
        self.memory: dict[str, int] = {}
        self.permits: dict[str, cmd.Permit] = {}
        self._numbers = itertools.count(1)
        self.now = 0.0
        self.together: list[bool] = []
        self.feed(ev.DeviceFound(DeviceInfo("d", "d", 16 * GIB)))

    def start(self, name: str, asks: float = 1.0, cost: float = 1e-6, memory: int = GIB, **quota: object) -> Program:
        program = self.programs[name] = Program(name, next(self._numbers), asks, cost)
        self.feed(ev.ClientRegistered(name, name, name, Quota().with_changes(quota)))
        self.feed(ev.ProcessJoined(name, program.number, ("d",)))
        self.change_memory(name, memory)
        self.feed(ev.CellStarted(name, "cell"))
        return program

    def end_cell(self, name: str) -> None:
        self.programs[name].asks = 0.0
        self.feed(ev.CellEnded(name, "cell"))

    def start_cell(self, name: str, asks: float) -> None:
        self.programs[name].asks = asks
        self.feed(ev.CellStarted(name, "cell"))

    def feed(self, event: ev.Event) -> None:
        events = deque([event])
        while events:
            for command in self.scheduler.handle(events.popleft(), self.now):
                if isinstance(command, cmd.Permit):
                    self.permits[command.client] = command
                elif isinstance(command, cmd.SetBudget) and command.client in self.programs:
                    self.programs[command.client].budget = command.budget
            if not events:
                events.extend(self._reports())
        check(self.scheduler, self.now)

    def _reports(self) -> Iterator[ev.Event]:
        """Yield the reports of programs that enter and leave as their permits allow."""
        for program in self.programs.values():
            permit = self.permits.get(program.name)
            if program.turn and permit and not permit.may:
                yield ev.TurnLeft(program.number, program.turn)
                program.turn, program.left = 0, permit.epoch
            elif program.is_waiting and not program.turn and permit and self._may_enter(program, permit):
                program.turn, program.is_waiting = permit.turn, False
                yield ev.TurnEntered(program.number, permit.turn, self.now)

    def _may_enter(self, program: Program, permit: cmd.Permit) -> bool:
        turns = {program.turn for program in self.programs.values()}
        return permit.may and permit.epoch != program.left and turns <= {0, permit.turn}

    def change_memory(self, name: str, memory: int) -> None:
        self.memory[name] = memory
        self.feed(ev.MemoryReported(name, memory, memory))

    def kill(self, name: str) -> None:
        number = self.programs.pop(name).number
        self.permits.pop(name, None)
        self.feed(ev.ProcessGone(number))
        self.feed(ev.ClientRemoved(name))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / MS)):
            self.now += MS
            while (due := self.scheduler.next_deadline()) is not None and due <= self.now:
                self.feed(ev.Tick())
            self._work()
            for program in self.programs.values():
                if program.asks and not program.open and not program.is_waiting:
                    program.is_waiting = True
                    self.feed(ev.GateWaitStarted(program.number))
            if len(self.together) % 1000 == 0:
                for program in self.programs.values():
                    blocks = int(program.blocks)
                    steps = int(program.steps)
                    self.feed(ev.Progress(program.name, blocks // 100, blocks, program.worked, training_steps=steps))

    def _work(self) -> None:
        demands = {name: program.demand for name, program in self.programs.items() if program.open}
        total = sum(demands.values())
        speed = 1.0 if total <= 1.0 else (self.efficiency if sum(map(bool, demands.values())) > 1 else 1.0) / total
        self.together.append(sum(map(bool, demands.values())) > 1)
        for name, program in self.programs.items():
            part = demands.get(name, 0.0) * speed
            program.got.append(part)
            program.blocks += (demands.get(name, 0.0) if program.launches_as_demanded else part) * MS / program.cost
            program.steps += program.step_rate * part * MS
            program.worked += MS * (bool(part) if total > 1 else part) * (program.seen if part < 0.1 else 1.0)

    def together_lately(self, seconds: float) -> float:
        part = self.together[-round(seconds / MS) :]
        return sum(part) / len(part)


def test_clients_that_slow_each_other_down_go_back_to_turns() -> None:
    host = Host("auto", efficiency=0.6)
    a, b = host.start("a"), host.start("b")
    host.run(40)
    assert 0 < sum(host.together) * MS <= 8, "a trial or two"
    assert host.together_lately(20) == 0
    assert a.lately(20) + b.lately(20) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("marks_steps", [True, False])
def test_the_progress_of_clients_that_mark_training_steps_is_their_steps(marks_steps: bool) -> None:
    """Both launch as many blocks together as alone, such as those that wait for other blocks."""
    host = Host("auto", efficiency=0.6)
    for name in ("a", "b"):
        program = host.start(name)
        program.launches_as_demanded, program.step_rate = True, 50.0 if marks_steps else 0.0
    host.run(80)
    assert host.together_lately(10) == (0 if marks_steps else 1)


def test_exclusive_never_colocates() -> None:
    host = Host("exclusive")
    host.start("a", asks=0.4)
    host.start("b", asks=0.4)
    host.run(20)
    assert not any(host.together)


def test_packed_colocates_clients_that_fit() -> None:
    host = Host("packed", efficiency=0.5)
    host.start("a")
    host.start("b")
    host.run(20)
    assert host.together_lately(18) == 1
    host.start("c", memory=16 * GIB)
    host.run(10)
    assert 0 < host.together_lately(8) < 0.7, "c does not fit with them"


def test_offline_client_is_unlimited_between_the_cells_of_an_online_client() -> None:
    host = Host("packed")
    offline, online = host.start("offline", service="offline"), host.start("online", asks=0.6)
    host.run(150)
    limited = offline.budget
    assert limited
    host.end_cell("online")
    host.run(0.1)
    assert offline.budget is None
    host.run(5)
    assert offline.lately(4) == pytest.approx(1.0)
    host.start_cell("online", 0.6)
    host.run(0.01)
    assert offline.budget and offline.budget.rate == pytest.approx(limited.rate, rel=0.1), "the old rate was safe"
    host.run(30)
    assert online.lately(30) >= 0.95 * 0.6


def test_offline_client_is_unlimited_in_pauses_within_a_cell_of_an_online_client() -> None:
    host = Host()
    offline, online = host.start("offline", service="offline"), host.start("online")
    host.run(20)
    assert offline.budget
    online.asks = 0.0
    host.feed(ev.ProcessIdle(online.number))
    host.run(0.1)
    assert offline.budget is None and not online.open
    online.asks = 1.0
    host.run(0.01)
    assert offline.budget and online.open


def test_the_rate_beside_a_client_that_has_become_offline_is_that_without_online_clients() -> None:
    host = Host("packed")
    host.start("a", asks=0.6)
    b = host.start("b", asks=0.3)
    host.run(20)
    assert b.budget is None
    host.feed(ev.QuotaChanged("b", Quota().with_changes({"service": "offline"})))
    host.run(40)
    assert b.budget and b.budget.reason == ADAPTIVE
    host.end_cell("a")
    host.run(5)
    host.start_cell("a", 0.6)
    host.run(0.01)
    assert b.budget and b.budget.reason == ADAPTIVE, "the rate is known"


def test_short_pause_of_an_online_client_ends_no_turn() -> None:
    host = Host()
    host.start("offline", service="offline")
    online = host.start("online")
    host.run(20)
    online.asks = 0.0
    host.feed(ev.ProcessIdle(online.number))
    host.run(0.02)
    online.asks = 1.0
    host.feed(ev.ProcessBusy(online.number))
    turn = online.turn
    host.run(1.0)
    assert turn and online.turn == turn


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("cost", [2e-3, 1e-6, 1e-8])
@pytest.mark.parametrize("order", [("online", "offline"), ("offline", "online")], ids="-then-".join)
def test_offline_client_gets_the_time_that_an_online_client_leaves_in_any_order(
    load: float, order: tuple[str, str], cost: float
) -> None:
    """`cost` is that of a block. A launch of 2 ms may have one block or thousands."""
    host = Host()
    for name in order:
        if name == "online":
            host.start(name, asks=load, cost=0.002)
        else:
            host.start(name, service="offline", cost=cost)
        host.run(20 if name == order[0] else 60)
    online, offline = host.programs["online"], host.programs["offline"]
    assert online.lately(60) >= 0.95 * load
    assert offline.lately(20) >= 0.8 * (1 - load)
    host.end_cell("online")
    host.run(2)
    assert offline.lately(1) == pytest.approx(1.0), "the device is free within a second"


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_sampled_work_of_rare_launches_does_not_distort_the_first_limit(load: float) -> None:
    """Work is sampled, so that most of a launch a second is not seen and its blocks seem shorter than they are."""
    host = Host()
    offline = host.start("offline", service="offline", cost=0.002)
    offline.seen = 0.1
    host.run(20)
    online = host.start("online", asks=load, cost=0.002)
    host.run(40)
    assert online.lately(39) >= 0.97 * load
    assert offline.lately(20) >= 0.8 * (1 - load)


def test_the_packing_of_online_clients_is_judged_with_an_offline_one_colocated() -> None:
    host = Host("auto", efficiency=0.7)
    for name in ("a", "b"):
        host.start(name)
    host.start("offline", service="offline")
    host.run(120)
    separated = sum(not (host.programs["a"].got[at] and host.programs["b"].got[at]) for at in range(-60_000, 0))
    assert separated > 40_000, "together the online clients do worse than in turns"


def test_colocated_clients_get_their_shares() -> None:
    host = Host("packed")
    a, b = host.start("a", share=0.7), host.start("b", share=0.2)
    host.run(60)
    assert a.lately(30) >= 0.7 - 0.01
    assert b.lately(30) >= 0.2 - 0.01
    a.asks = 0.1
    host.run(150)
    assert b.lately(5) >= 0.7, "b borrows the time that a leaves"
    a.asks = 1.0
    host.run(40)
    assert a.lately(5) >= 0.7 - 0.01


def test_launch_budget_has_a_reason_and_a_beneficiary() -> None:
    host = Host("packed")
    online = host.start("online", asks=0.5, share=0.2)
    host.start("busy", asks=0.3, share=0.6)
    offline = host.start("offline", service="offline")
    host.run(2)
    assert online.budget == LaunchBudget(0.2, DEVICE_SECONDS, SHARE, ("busy",))
    assert offline.budget == LaunchBudget(1, BLOCKS, MEASURING, ("online", "busy"))
    host.run(45)
    assert online.budget and online.budget.reason == SURPLUS and online.budget.rate > 0.2
    assert offline.budget and offline.budget.reason == ADAPTIVE and offline.budget.rate > 1


ACTIONS = st.tuples(
    st.sampled_from("abcd"),
    st.one_of(
        st.tuples(st.just("cell"), st.sampled_from([0.0, 0.2, 0.6, 1.0])),
        st.tuples(st.just("memory"), st.sampled_from([0, 1, 6, 10, 16])),
        st.tuples(st.just("quota"), st.sampled_from([{"share": 0.2}, {"service": "offline"}, {"share": 0.1}, {}])),
        st.tuples(st.just("sharing"), st.sampled_from(["auto", "packed", "exclusive"])),
        st.tuples(st.just("end"), st.none()),
    ),
    st.sampled_from([0.003, 0.2, 1.1]),
)


def test_online_clients_share_after_an_offline_client_has_left() -> None:
    """The loads of both online clients are known, and no offline client is left to be limited."""
    host = Host()
    host.start("first", 0.3)
    host.run(4)
    host.end_cell("first")
    host.run(2)
    host.start("second", 0.3)
    host.run(8)
    host.start("offline", 0.3, service="offline")
    host.run(8)
    host.end_cell("offline")
    host.run(3)
    host.start_cell("first", 0.3)
    host.run(10)
    assert [name for name, program in host.programs.items() if program.open] == ["first", "second"]


@given(st.sampled_from(["auto", "packed"]), st.sampled_from([0.5, 1.0]), st.lists(ACTIONS, max_size=20))
@settings(max_examples=tier.strength(15, 300), deadline=None)
def test_colocated_clients_fit_and_exclusive_clients_are_unlimited(
    sharing: str, efficiency: float, actions: list[tuple[str, tuple[str, object], float]]
) -> None:
    host = Host(sharing, efficiency)
    for name, (what, how), seconds in actions:
        if name not in host.programs:
            host.start(name)
        if what == "cell" and host.programs[name].asks:
            host.end_cell(name)
        elif what == "cell":
            host.start_cell(name, how)
        elif what == "memory":
            host.change_memory(name, how * GIB)
        elif what == "quota":
            host.feed(ev.QuotaChanged(name, Quota().with_changes(how), host.memory[name]))
        elif what == "sharing":
            host.feed(ev.SettingsChanged(of(how)))
        else:
            host.kill(name)
        host.run(seconds)
        running = [program for program in host.programs.values() if program.open]
        assert len(running) < 2 or sum(host.memory[program.name] for program in running) <= 16 * GIB
        limited = [program.name for program in host.programs.values() if program.budget]
        assert not limited or len(running) > 1, limited
        waiting = [program.name for program in host.programs.values() if program.asks and not program.open]
        assert running or not waiting
