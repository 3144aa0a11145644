"""Tests of the plan of device memory: evictions, resident targets and prefetches."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.core.base.memory_use import MemoryUse
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.residency.residency_plan import plan_residency

from .simulated_host import SimulatedHost, host_of

GIB = 1 << 30
NAMES = ["a", "b", "c", "d", "e"]


def full(size: int) -> MemoryUse:
    return MemoryUse(size, size)


def evicted(size: int) -> MemoryUse:
    return MemoryUse(size, 0)


@pytest.mark.parametrize(
    ("memory_use", "queue", "idle", "kept"),
    [
        pytest.param({"a": full(5), "b": full(5)}, "b", [], {}, id="nothing-leaves-where-all-fits"),
        pytest.param({"a": full(7), "b": evicted(5)}, "b", [], {"a": 5}, id="the-next-client-needs-room"),
        pytest.param(
            {"a": full(4), "b": evicted(5), "old": full(3), "new": full(3)}, "b", ["old", "new"], {"old": 0, "new": 1},
            id="idle-clients-first-the-longest-idle-before-others",
        ),
        pytest.param({"a": full(5), "b": evicted(5), "c": full(5)}, "bc", [], {"a": 0}, id="then-the-running-client"),
        pytest.param({"a": evicted(6), "b": full(4), "c": full(5)}, "bc", [], {"c": 0}, id="the-last-for-the-running"),
        pytest.param({"a": MemoryUse(8, 8, 6), "b": evicted(5)}, "b", [], {"a": 6}, id="unmovable-memory-stays"),
        pytest.param({"a": full(4), "b": evicted(30)}, "b", [], {"a": 0}, id="all-for-a-client-larger-than-the-device"),
    ],
)  # fmt: skip
def test_resident_targets_follow_the_free_memory(
    memory_use: dict[str, MemoryUse], queue: str, idle: list[str], kept: dict[str, int]
) -> None:
    assert plan_residency(10, memory_use, ["a"], list(queue), idle) == kept


def test_refused_allocation_forces_evictions() -> None:
    assert plan_residency(10, {"a": full(2), "i": full(5)}, ["a"], [], ["i"], unmet_bytes=3) == {"i": 2}


def test_memory_of_online_clients_in_use_leaves_last() -> None:
    """The idle client `i` is online, and offline clients take turns."""
    memory_use = {"a": full(3), "b": evicted(5), "c": full(3), "i": full(4)}
    assert plan_residency(10, memory_use, ["a"], ["b", "c"], ["i"], kept=["i"]) == {"a": 0, "c": 1}


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, dict[str, MemoryUse], str | None, list[str], list[str]]:
    memory = draw(st.integers(1, 50))
    memory_use = {}
    room = memory
    for name in NAMES[: draw(st.integers(1, 5))]:
        resident = draw(st.integers(0, room))
        room -= resident
        memory_use[name] = MemoryUse(resident + draw(st.integers(0, 40)), resident, draw(st.integers(0, resident)))
    order = draw(st.permutations(list(memory_use)))
    running = order.pop() if draw(st.booleans()) else None
    cut = draw(st.integers(0, len(order)))
    return memory, memory_use, running, order[:cut], order[cut:]


@given(situations())
def test_evictions_free_what_the_next_client_needs(
    situation: tuple[int, dict[str, MemoryUse], str | None, list[str], list[str]],
) -> None:
    memory, memory_use, running, queue, idle = situation
    kept = plan_residency(memory, memory_use, [running] if running is not None else [], queue, idle)
    for name, left in kept.items():
        assert (
            memory_use[name].unmovable
            <= left
            < (memory_use[name].allocated if name == running else memory_use[name].resident)
        )
    now = {name: kept.get(name, one.resident) for name, one in memory_use.items() if name != running}
    if running is not None:  # while it runs, there is room for it, as far as others can leave
        others = sum(now.values())
        assert others + memory_use[running].allocated <= memory or all(
            now[n] == memory_use[n].unmovable for n in [*idle, *queue[1:]]
        )
        assert not kept or queue or others + memory_use[running].allocated >= memory
    if queue:
        now |= {running: kept.get(running, memory_use[running].allocated)} if running is not None else {}
        coming = queue[0]
        total = sum(left for name, left in now.items() if name != coming) + memory_use[coming].allocated
        movable = [n for n in now if n != coming and now[n] > memory_use[n].unmovable]
        assert total <= memory or not movable
        # Memory that is needed later leaves before memory that is needed earlier.
        order = [*idle, *([running] if running is not None else []), *reversed(queue[1:])]
        evicted_clients = [name for name in order if name in kept and name != running]
        for name in evicted_clients:
            before = [other for other in order[: order.index(name)] if other != running]
            assert all(now[other] == memory_use[other].unmovable for other in before)
    elif running is None:
        assert kept == {}


def sent(host: SimulatedHost) -> dict[str, int | None]:
    return {command.client: command.bytes for command in host.commands if isinstance(command, cmd.SetResident)}


def test_resident_target_is_set_before_the_gate_closes_and_cleared_when_all_fits(host: SimulatedHost) -> None:
    host.add_device("d")
    host.add_process("a", busy=True)
    second = host.add_process("b")
    host.report_memory("a", 3 * GIB // 4)
    host.report_memory("b", GIB // 2, 0)
    assert sent(host) == {}
    host.wait_at_gate(second)
    assert sent(host) == {"a": GIB // 2}
    host.run(host.settings.time_quantum + 1)
    commands = [command for command in host.commands if getattr(command, "client", "") == "a"]
    withdrawn = next(n for n, command in enumerate(commands) if isinstance(command, cmd.Permit) and not command.may)
    assert [type(command) for command in commands].index(cmd.SetResident) < withdrawn
    host.report_memory("b", 0)
    assert set(sent(host).values()) == {None}


def test_idle_client_makes_room_for_a_refused_allocation(host: SimulatedHost) -> None:
    host.add_device("d")
    idle, runs = host.add_process("idle", busy=False), host.add_process("runs")
    host.wait_at_gate(idle)
    host.report_memory("idle", GIB // 2)
    host.handle_event(ev.ReleaseRequested("idle"))
    host.run(0.1)
    host.wait_at_gate(runs)
    host.report_memory("runs", GIB // 2)
    assert sent(host) == {}
    host.report_memory("runs", GIB // 2, unmet_bytes=GIB // 8)
    assert sent(host) == {"idle": 3 * GIB // 8}


def test_resident_quota_applies_under_contention(host: SimulatedHost) -> None:
    host.add_device("d")
    host.start_client("a", resident=GIB // 4)
    host.report_memory("a", GIB // 2)
    assert sent(host) == {}
    host.wait_at_gate(host.add_process("b"))
    assert sent(host) == {"a": GIB // 4}


def test_resident_quota_counts_no_context_memory(host: SimulatedHost) -> None:
    host.add_device("d")
    host.start_client("a", resident=GIB // 4)
    host.report_memory("a", 5 * GIB // 8, unmovable=GIB // 8, context=GIB // 8)
    host.wait_at_gate(host.add_process("b"))
    assert sent(host) == {"a": GIB // 4 + GIB // 8}


def test_resident_quota_does_not_apply_while_only_the_client_itself_is_deferred(host: SimulatedHost) -> None:
    """A client that has reached its limit waits for its next turn, and nothing else waits for the device."""
    host.add_device("d")
    host.wait_at_gate(host.start_client("a", limit=0.5, resident=GIB // 4))
    host.report_memory("a", GIB // 2)
    host.run_until(lambda: host.running() == "a")
    host.run_until(lambda: host.running() is None)
    host.run(0.01)
    assert host.phase("a") == "waiting"
    host.report_memory("a", GIB // 2 + 1)
    assert sent(host) == {}


def test_the_quantum_counts_from_when_memory_is_back() -> None:
    host = host_of("d", time_quantum=1.0)
    first, _ = host.start_busy("a", "b")
    host.run(0.4)
    host.handle_event(ev.RestoreFinished(first.number))
    host.run_until(lambda: host.running() == "b")
    assert host.now == pytest.approx(1.4)


def test_a_short_quantum_does_not_end_before_memory_is_back() -> None:
    """Otherwise a client with much memory would only move memory. How long a restore takes is still unknown."""
    host = host_of("d", time_quantum=0.1)
    other, first = host.start_busy("b", "a")
    host.report_memory("a", GIB, 0)
    host.run_until(lambda: host.running() == "a")
    host.run(0.105)
    assert host.running() == "a"
    host.handle_event(ev.RestoreFinished(first.number))
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(0.1)
    host.run_until(lambda: host.running() == "a")
    assert other.openings and host.scheduler.clients["a"].switch_cost.restore > 0


@pytest.mark.parametrize("seconds", [4.0, 7.0])
def test_a_slow_restore_is_followed_by_a_quantum(seconds: float) -> None:
    """The quantum counts from the end of a restore, turn after turn, if the restore has at least 1 GB a second."""
    host = host_of("d", time_quantum=0.5)
    _, process = host.start_busy("b", "a")
    host.report_memory("a", 8 * 10**9, 0)
    for _ in range(3):
        host.run_until(lambda: host.running() == "a")
        host.run(seconds)
        assert host.running() == "a"
        host.handle_event(ev.RestoreFinished(process.number))
        assert host.run_until(lambda: host.running() == "b") == pytest.approx(0.5)


@pytest.mark.parametrize(("gigabytes", "seconds"), [(8, 8.0), (100, 30.0)])
def test_a_restore_delays_the_end_of_a_turn_by_a_bound(gigabytes: int, seconds: float) -> None:
    host = host_of("d", time_quantum=0.5)
    host.start_busy("b", "a")
    host.report_memory("a", gigabytes * 10**9, 0)
    host.run_until(lambda: host.running() == "a")
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(seconds + 0.5)


def test_allowance_for_a_restore_ends_when_the_program_frees_the_memory() -> None:
    host = host_of("d", time_quantum=0.5)
    host.start_busy("b", "a")
    host.report_memory("a", 8 * 10**9, 0)
    host.run_until(lambda: host.running() == "a")
    host.run(0.1)
    host.report_memory("a", 0)
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(0.5)
    client = host.scheduler.clients["a"]
    assert (client.switch_cost.restore, client.restores_memory) == (0, True)


def test_allowance_for_a_restore_ends_when_a_prefetch_has_restored_the_memory() -> None:
    """A process reports no restore if all of its memory is back at its first call."""
    host = host_of("d", time_quantum=0.5)
    host.start_busy("b", "a")
    host.report_memory("a", 8 * 10**9, 0)
    host.run_until(lambda: host.running() == "a")
    host.run(0.1)
    host.report_memory("a", 8 * 10**9)
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(0.5)
    assert host.scheduler.clients["a"].restores_memory


def test_client_without_a_restore_gets_no_restore_time() -> None:
    """Unified memory that was never touched is not on the device either."""
    host = host_of("d", time_quantum=0.1)
    host.start_busy("b", "a")
    host.report_memory("a", GIB, 0)
    host.run(3.0)
    turns = [until - since for client, since, until in host.turns["d"] if client == "a"]
    assert turns[1:] == [pytest.approx(0.1)] * len(turns[1:])
    assert len(turns) > 4


def test_turn_without_the_wait_for_unmade_memory_has_no_restore() -> None:
    """A signal interrupts the call that waits with the memory, before the call passes the gate."""
    host = host_of("d", time_quantum=0.5)
    host.start_busy("b", "a")
    host.report_memory("a", 8 * 10**9, 0, unmade=8 * 10**9)
    host.run_until(lambda: host.running() == "a")
    host.report_memory("a", 8 * 10**9)
    assert host.run_until(lambda: host.running() == "b") == pytest.approx(0.5)
    client = host.scheduler.clients["a"]
    assert (client.switch_cost.restore, client.restores_memory) == (0, True)


def test_reported_restore_extends_a_turn_to_two_quanta_at_most() -> None:
    host = host_of("d", time_quantum=1.0)
    first = host.add_process("a", busy=True)
    host.run(5.0)
    host.handle_event(ev.RestoreFinished(first.number))
    host.add_process("b", busy=True)
    host.run_until(lambda: host.running() == "b")
    assert host.now == pytest.approx(5.0)
    assert host.scheduler.clients["a"].gpu_seconds == pytest.approx(5.0)


@st.composite
def together(draw: st.DrawFn) -> tuple[int, dict[str, MemoryUse], list[str], list[str], list[str]]:
    memory, memory_use, running, first, second = draw(situations())
    runs = [running] if running is not None else []
    room = memory - sum(memory_use[name].allocated for name in runs)
    for name in list(first):  # clients whose memory fits together with that of the running clients
        if runs and memory_use[name].allocated <= room and draw(st.booleans()):
            runs.append(name)
            first.remove(name)
            room -= memory_use[name].allocated
    return memory, memory_use, runs, first, second


@given(together())
def test_with_several_running_clients_memory_that_is_needed_latest_leaves_first(
    situation: tuple[int, dict[str, MemoryUse], list[str], list[str], list[str]],
) -> None:
    memory, memory_use, running, queue, idle = situation
    kept = plan_residency(memory, memory_use, running, queue, idle)
    left = {name: kept.get(name, one.resident) for name, one in memory_use.items()}
    others = [*idle, *reversed(queue)]
    needed = sum(memory_use[name].allocated for name in running)
    if running:
        stay = [name for name in others if name not in queue[:1]]
        assert needed + sum(left[name] for name in others) <= memory or all(
            left[name] == memory_use[name].unmovable for name in stay
        )
        # No running client gives memory up as long as idle clients have memory that could leave.
        for name in running:
            if kept.get(name, memory_use[name].allocated) < memory_use[name].allocated:
                assert all(left[other] == memory_use[other].unmovable for other in idle)
    for earlier, later in itertools.pairwise(reversed(idle)):
        if left[earlier] < memory_use[earlier].resident:
            assert left[later] == memory_use[later].unmovable, "the longest idle client leaves first"


def test_suspended_client_is_evicted_without_contention(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    host.report_memory("a", GIB // 2)
    host.handle_event(ev.SuspendRequested("a"))
    assert sent(host) == {"a": 0}
    host.run(1)
    assert host.running() is None
    host.handle_event(ev.ResumeRequested("a"))
    assert sent(host) == {"a": None}
    assert host.run_until(lambda: host.running() == "a") == 0


def test_prefetch_needs_room(host: SimulatedHost) -> None:
    host.add_device("d")
    host.add_process("a", busy=True)
    second = host.add_process("b")
    host.report_memory("a", GIB)
    host.report_memory("b", GIB // 4, 0)
    host.wait_at_gate(second)
    assert not [command for command in host.commands if isinstance(command, cmd.Prefetch)]
    host.report_memory("a", GIB // 2)
    assert cmd.Prefetch("b", "gpu", True) in host.commands
    host.report_memory("a", GIB, GIB // 2)  # the other half is being restored for the running client
    assert cmd.Prefetch("b", "gpu", False) in host.commands


def test_unmade_memory_is_not_prefetched(host: SimulatedHost) -> None:
    host.add_device("d")
    host.add_process("a", busy=True)
    second = host.add_process("b")
    host.report_memory("a", GIB // 2)
    host.report_memory("b", GIB // 4, 0, unmade=GIB // 4)
    host.wait_at_gate(second)
    assert not [command for command in host.commands if isinstance(command, cmd.Prefetch)]
    host.report_memory("b", GIB // 4, 0, unmade=GIB // 8)
    assert cmd.Prefetch("b", "gpu", True) in host.commands


def test_nothing_is_prefetched_while_a_running_client_lacks_room(host: SimulatedHost) -> None:
    """A context of another program takes memory that no report shows, so the device is full."""
    host.add_device("d")
    host.add_process("a", busy=True)
    second = host.add_process("b")
    host.report_memory("a", GIB // 2)
    host.report_memory("b", GIB // 4, 0)
    host.wait_at_gate(second)
    assert cmd.Prefetch("b", "gpu", True) in host.commands
    host.report_memory("a", GIB // 2, GIB // 4, unmet_bytes=GIB // 4)
    assert cmd.Prefetch("b", "gpu", False) in host.commands


def test_eviction_order_does_not_grow_with_turns() -> None:
    host = host_of("d", time_quantum=0.1)
    host.start_busy("a", "b", "c")
    host.run(100.0)
    assert len(host.turns["d"]) > 900
    assert len(host.scheduler.devices["d"].eviction_candidates._waiting) < 100
