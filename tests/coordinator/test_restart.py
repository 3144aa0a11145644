"""A coordinator dies at any moment; another one takes over what it finds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from jupyter_gpushare.wire import messages

from ..support.rule import CLOSING, IN, OUT
from .conftest import OTHER, Coordinator, Processes
from .fake_process import wait_for
from .test_turns import locked


def test_a_running_turn_is_adopted_with_page_quota_and_lock(coordinator: Coordinator, processes: Processes) -> None:
    a, b = processes("a"), processes("b")
    changes = {"memory": "3GiB", "share": 0.25, "limit": "50%", "service": "offline", "resident": "1GiB"}
    coordinator.request(messages.SetQuota(client="a", changes=changes))
    quota = (coordinator.client("a") or {})["quota"]
    a.run_turn()
    held = a.turn.turn
    coordinator.end(signal.SIGKILL)
    assert (a.phase, locked()) == (IN, True), "it runs on, and its lock with it"

    coordinator.start()
    for process in (b, a):
        process.disconnect()
        assert process.say_hello() == "welcome"
    assert (a.phase, a.turn.turn) == (IN, held)
    assert b.phase == OUT
    client = coordinator.client("a")
    assert client and (client["phase"], client["quota"]) == ("running", quota)
    assert quota["memory"] == 3 << 30
    b.wants()
    a.wait_phase(CLOSING)
    a.drain()
    b.wait_phase(IN)


@pytest.mark.parametrize(("number", "holds_on"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_settings_changed_live_outlive_a_killed_coordinator(
    coordinator: Coordinator, processes: Processes, number: int, holds_on: bool
) -> None:
    before = coordinator.status()["config"]
    coordinator.request(messages.Config(changes={"time_quantum": "7", "default_quota": "memory=1GiB"}))
    coordinator.request(messages.Config(changes={"idle_release": 3}))
    coordinator.end(number)
    coordinator.start()
    after = coordinator.status()["config"]
    changed = before | {"time_quantum": 7, "default_quota": {"memory": "1GiB"}, "idle_release": 3}
    assert after == (changed if holds_on else before)
    process = processes("a")
    assert process.orders.quantum_ns == after["time_quantum"] * 10**9
    assert (process.orders.memory_limit == 1 << 30) == holds_on


@pytest.mark.parametrize("kept", ["", '{"time_quantum": -1}', '{"colour": 1}', "7", "\x00"])
def test_settings_kept_by_mistake_are_not_used(coordinator: Coordinator, kept: str) -> None:
    before = coordinator.status()["config"]
    coordinator.end(signal.SIGKILL)
    Path(coordinator.path + ".settings").write_text(kept)
    coordinator.start()
    assert coordinator.status()["config"] == before
    assert not Path(coordinator.path + ".settings").exists()


def test_settings_that_somebody_else_has_put_there_are_not_used(coordinator: Coordinator) -> None:
    """The socket may be in a folder that others write to."""
    if os.getuid() != 0:
        pytest.skip("needs root, to be two users")
    before = coordinator.status()["config"]
    kept = Path(coordinator.path + ".settings")
    target = kept.with_name("target")
    for is_link in (False, True):
        coordinator.end(signal.SIGKILL)
        (target if is_link else kept).write_text('{"time_quantum": 7}')
        if is_link:
            kept.symlink_to(target)
        os.chown(kept, OTHER, OTHER, follow_symlinks=False)
        coordinator.start()
        assert coordinator.status()["config"] == before


def test_a_drain_that_it_did_not_see_the_end_of(coordinator: Coordinator, processes: Processes) -> None:
    a = processes("a")
    a.run_turn()
    coordinator.request(messages.Release(client="a"))
    a.wait_phase(CLOSING)
    coordinator.end(signal.SIGKILL)
    coordinator.start()
    a.disconnect()
    a.say_hello()
    assert (coordinator.client("a") or {})["phase"] == "draining"
    a.drain()
    wait_for(lambda: not locked())


def test_who_drained_meanwhile_is_idle(coordinator: Coordinator, processes: Processes) -> None:
    a = processes("a")
    a.run_turn()
    coordinator.request(messages.Release(client="a"))
    a.wait_phase(CLOSING)
    coordinator.end(signal.SIGKILL)
    a.drain()
    coordinator.start()
    a.disconnect()
    a.say_hello()
    assert (coordinator.client("a") or {})["phase"] == "idle"
    a.run_turn()


def test_a_process_that_joins_with_a_turn_of_its_own_runs_on(coordinator: Coordinator, processes: Processes) -> None:
    """It began without a coordinator, while the rest of its client had one."""
    first = processes("a", "GPU-1")
    late = processes("a", "GPU-2", connect=False)
    late.link.away_since, late.orders.quantum_ns = 1, 60 * 10**9
    late.run_turn()
    assert late.say_hello() == "join"
    assert late.phase == IN
    first.run_turn()
    assert first.turn.turn == late.turn.turn
    coordinator.request(messages.Release(client="a"))
    for process in (first, late):
        process.wait_phase(CLOSING)
        process.drain()
    first.run_turn()
    late.run_turn()
    assert first.client_page.inode == late.client_page.inode


def test_both_processes_of_a_client_come_back(coordinator: Coordinator, processes: Processes) -> None:
    first, second, other = processes("a"), processes("a"), processes("b")
    first.run_turn()
    second.run_turn()
    coordinator.end(signal.SIGKILL)
    coordinator.start()
    for process in (second, first, other):
        process.disconnect()
        assert process.say_hello() == "welcome"
    assert (first.phase, second.phase) == (IN, IN)
    assert len((coordinator.client("a") or {})["processes"]) == 2
    assert {first.orders.slot, second.orders.slot} == {0, 1}
    other.wants()
    for process in (first, second):
        process.wait_phase(CLOSING)
        process.drain()
    other.wait_phase(IN)


def test_a_gang_comes_back_with_all_its_locks(coordinator: Coordinator, processes: Processes) -> None:
    first, second = processes("gang", "GPU-1"), processes("gang", "GPU-2")
    first.run_turn()
    second.run_turn()
    coordinator.end(signal.SIGKILL)
    coordinator.start()
    for process in (first, second):
        process.disconnect()
        process.say_hello()
    assert (first.phase, second.phase) == (IN, IN)
    coordinator.request(messages.Release(client="gang"))
    for process in (first, second):
        process.wait_phase(CLOSING)
        process.drain()
    wait_for(lambda: not locked("GPU-1") and not locked("GPU-2"))


def test_busy_processes_go_on_taking_turns(coordinator: Coordinator, processes: Processes) -> None:
    first, second = processes.busy("a"), processes.busy("b")
    second.next("begin", after=first.next("begin"))
    coordinator.end(signal.SIGKILL)
    coordinator.start()
    restarted = time.monotonic()
    turns = [busy.next("end", after=busy.next("begin", after=restarted)) for busy in (first, second)]
    assert max(turns) - restarted < 5
    spans = sorted(first.turns() + second.turns())
    assert all(began >= ended for (_, ended), (began, _) in zip(spans, spans[1:], strict=False))  # noqa: RUF007


def test_a_client_is_kept_while_it_is_away(coordinator: Coordinator, processes: Processes) -> None:
    """A kernel restarts: same client, same quota."""
    a = processes("a", quota="memory=2GiB")
    coordinator.request(messages.SetQuota(client="a", changes={"memory": "5GiB"}))
    a.close()
    wait_for(lambda: (coordinator.client("a") or {})["processes"] == [])
    again = processes("a", quota="memory=2GiB")
    assert again.orders.memory_limit == 5 << 30


def test_a_forgotten_client_is_dropped(coordinator: Coordinator, processes: Processes) -> None:
    a = processes("a")
    coordinator.request(messages.Forget(client="a"))
    assert coordinator.client("a"), "not while one of its processes lives"
    a.close()
    wait_for(lambda: coordinator.client("a") is None)
    coordinator.request(messages.Register(client="b", token="t"))
    coordinator.request(messages.Forget(client="b"))
    assert coordinator.client("b") is None


def test_no_descriptor_is_left_of_a_hundred_clients(coordinator: Coordinator, processes: Processes) -> None:
    kept = processes("kept")
    coordinator.status()
    before = coordinator.descriptors()
    for number in range(100):
        client = f"c{number % 7}"
        first, second = processes(client), processes(client)
        if number % 3 == 0:
            first.run_turn()
        second.close()
        first.close()
        wait_for(lambda name=client: (coordinator.client(name) or {})["processes"] == [])  # type: ignore[misc]
        if number % 2:
            coordinator.request(messages.Forget(client=client))
    wait_for(lambda: coordinator.descriptors() <= before)
    kept.run_turn()
