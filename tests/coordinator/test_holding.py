"""Clients that hold, are suspended and resumed: by message, by command, and across coordinators."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Callable

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import CoordinatorError
from jupyter_gpushare.wire.page import UNKNOWN, layout

from ..support.rule import CLOSING, IN
from .conftest import Coordinator, Processes
from .fake_process import Connection, FakeProcess, wait_for

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def coordinator(idle_coordinator: Coordinator) -> Coordinator:
    """Whose turns don't end by their quantum here."""
    return idle_coordinator.start(quantum=60)


@pytest.fixture
def pair(coordinator: Coordinator, processes: Processes) -> tuple[FakeProcess, FakeProcess]:
    """One runs, the other waits."""
    for name in ("a", "b"):
        coordinator.request(messages.Register(client=name, token="secret", label=f"{name}.ipynb"))
    a, b = processes("a"), processes("b")
    a.run_turn()
    b.wants()
    return a, b


def phase(coordinator: Coordinator, name: str) -> str:
    client = coordinator.client(name)
    assert client
    return str(client["phase"])


def test_who_holds_keeps_its_gate_open_past_its_quantum(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    a, b = pair
    held = coordinator.request(messages.Hold(client="a", seconds="5min"))
    assert held["running"] and 299 < held["hold_seconds_left"] <= 300
    deadline = wait_for(lambda: a.permit.deadline_ns)
    client = coordinator.client("a")
    assert client and 290 < client["hold_seconds_left"] <= 300
    assert deadline / 1e9 - a.orders.heartbeat_ns / 1e9 > 290, "its agent, which closes by itself, knows"
    assert coordinator.request(messages.Hold(client="b"))["running"] is False
    assert coordinator.request(messages.Release(client="b")) == {"released": True, "turn": False, "hold": True}
    assert coordinator.request(messages.Release(client="b")) == {"released": False, "turn": False, "hold": False}
    assert coordinator.request(messages.Release(client="a")) == {"released": True, "turn": True, "hold": True}
    a.wait_phase(CLOSING)
    a.drain()
    b.wait_phase(IN)


@pytest.mark.usefixtures("pair")
def test_who_holds_between_cells_is_not_told_as_running(coordinator: Coordinator) -> None:
    def told() -> list[bool]:
        (running,) = coordinator.request(messages.Outlook(client="b"))["running"]
        (grant,) = coordinator.status()["devices"][0]["grants"]
        return [running["held"], grant["held"]]

    with contextlib.closing(Connection(coordinator.path)) as kernel:
        kernel.send({"type": "attach", "client": "a", "token": "secret"})
        kernel.send({"type": "cell", "state": "start", "request": "1"})
        wait_for(lambda: (coordinator.client("a") or {})["cells"] == 1)
        coordinator.request(messages.Hold(client="a", seconds="5min"))
        assert told() == [False, False], "its cell runs"
        kernel.send({"type": "cell", "state": "end", "request": "1"})
        wait_for(lambda: told() == [True, True])
        kernel.send({"type": "cell", "state": "start", "request": "2"})
        wait_for(lambda: told() == [False, False])


def test_a_program_that_holds_is_running_until_it_is_idle(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    def told() -> bool:
        return bool(coordinator.request(messages.Outlook(client="b"))["running"][0]["held"])

    a, _ = pair
    coordinator.request(messages.Hold(client="a", seconds="5min"))
    assert not told()
    a.finish()
    wait_for(told)
    a.submissions += 1
    a.works = True
    wait_for(lambda: not told())


def test_a_suspended_client_ends_its_turn_and_gets_none(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    a, b = pair
    assert coordinator.request(messages.Suspend(client="a")) == {"suspended": True, "changed": True}
    a.wait_phase(CLOSING)
    a.drain()
    b.wait_phase(IN)
    a.wants()
    coordinator.request(messages.Release(client="b"))
    b.wait_phase(CLOSING)
    b.drain()
    wait_for(lambda: phase(coordinator, "b") == "idle")
    assert phase(coordinator, "a") == "suspended"
    assert a.phase != IN, "the device is free, and a still waits"
    assert coordinator.request(messages.Resume(client="a")) == {"suspended": False, "changed": True}
    a.wait_phase(IN)


def test_an_evicted_client_ends_its_turn_and_its_memory_leaves_until_the_next(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    a, b = pair
    a.allocate(64 << 20)
    assert coordinator.request(messages.Evict(client="a")) == {"evicting": True, "bytes": 64 << 20}
    assert a.orders.resident_target == 0, "it is told before it drains"
    a.wait_phase(CLOSING)
    a.report.resident = 0
    a.drain()
    b.wait_phase(IN)
    assert coordinator.request(messages.Evict(client="a")) == {"evicting": False, "bytes": 0}
    a.wants()
    coordinator.request(messages.Release(client="b"))
    b.wait_phase(CLOSING)
    b.drain()
    a.wait_phase(IN)
    assert a.orders.resident_target == UNKNOWN, "all of it may be there again"


def test_memory_that_cannot_leave_is_not_evicted(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    a, _ = pair
    a.allocate(64 << 20)
    a.report.memory_mode = layout()[1]["GPUSHARE_MEMORY_PLAIN"]
    with pytest.raises(CoordinatorError, match="mode plain, which cannot leave the device") as caught:
        coordinator.request(messages.Evict(client="a"))
    assert caught.value.reason == "conflict"
    assert a.phase == IN, "a refusal changes nothing"


@pytest.mark.parametrize("resumed", [False, True])
def test_a_suspension_outlives_a_killed_coordinator(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess], resumed: bool
) -> None:
    _, b = pair
    coordinator.request(messages.Suspend(client="b"))
    if resumed:
        coordinator.request(messages.Resume(client="b"))
    coordinator.end(signal.SIGKILL)
    coordinator.start()
    b.disconnect()
    b.say_hello()
    b.wants()
    wait_for(lambda: phase(coordinator, "b") == ("waiting" if resumed else "suspended"))


def test_a_client_resumed_while_its_process_was_away_stays_so(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess]
) -> None:
    _, b = pair
    coordinator.request(messages.Suspend(client="b"))
    b.disconnect()
    wait_for(lambda: not (coordinator.client("b") or {})["processes"])
    coordinator.request(messages.Resume(client="b"))
    b.say_hello()
    assert phase(coordinator, "b") != "suspended"


@pytest.mark.parametrize("seconds", [-1, 601, "soon", 1e300])
def test_bad_holds_say_what_is_allowed(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess], seconds: object
) -> None:
    with pytest.raises(CoordinatorError, match=r"allowed are 0 to 600 seconds|examples: 90, 30s, 5min, 1h"):
        coordinator.request(messages.Hold(client="a", seconds=seconds))  # type: ignore[arg-type]


def test_the_commands(coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess], command: Run) -> None:
    def say(*words: str) -> str:
        done = command(*words, "--socket", coordinator.path)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    a, _ = pair
    assert say("hold", "a.ipynb", "5min") == "a.ipynb: it keeps the GPU for 5 min\n"
    assert "held for" in say("status")
    assert say("hold", "a", "0") == "a.ipynb: it holds the GPU no longer\n"
    assert say("suspend", "b") == "b.ipynb: it gets no turns until it is resumed\n"
    assert "already" in say("suspend", "b")
    assert "suspended" in say("status")
    assert say("resume", "b") == "b.ipynb: it takes part again\n"
    assert "not suspended" in say("resume", "b")
    assert a.phase == IN, "nobody waits"
    whole = "memory=none is all of the device's, 8 GiB"
    assert say("quota", "b") == f"b.ipynb: share=0 limit=1 memory=none resident=none class=online; {whole}\n"
    changed = "b.ipynb: share=0.25 limit=1 memory=2GiB resident=none class=offline\nnote: share 0.25 counts in"
    assert say("quota", "b", "share=25%", "memory=2GiB", "class=Offline").startswith(changed)
    assert say("quota", "b").startswith(changed)
    assert say("evict", "b") == "b.ipynb: it has no memory on the device that could leave\n"
    a.allocate(512 << 20)
    assert say("evict", "a") == "a.ipynb: 512 MiB leave the device, and come back with its next turn\n"
    say("hold", "b", "1min")
    assert say("release", "b") == "b.ipynb: its hold ends; it has no turn now\n"
    assert say("release", "b") == "b.ipynb: it has no turn now, and holds nothing\n"
    assert say("release", "a") == "a.ipynb: its turn ends\n"
    a.wait_phase(CLOSING)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("share=2",), "allowed is a fraction from 0 to 1"),
        (("share",), "key=value"),
        (("colour=1",), "allowed are share"),
        (("class=online", "service=online"), "two names of the same thing"),
        (("class=vip",), "class='vip' is unknown: allowed are online, offline"),
        (("service=vip",), "service='vip' is unknown: allowed are online, offline"),
    ],
)
def test_a_bad_quota_says_what_is_allowed(
    coordinator: Coordinator, pair: tuple[FakeProcess, FakeProcess], command: Run, words: tuple[str, ...], said: str
) -> None:
    done = command("quota", "a", *words, "--socket", coordinator.path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_command_for_nobody_or_several_names_who_is_there(
    coordinator: Coordinator, processes: Processes, command: Run
) -> None:
    for name in ("ka", "kb"):
        coordinator.request(messages.Register(client=name, token="secret", label="same.ipynb"))
    for words, said in (
        (("release", "other"), "'other' is no client"),
        (("release", "same.ipynb"), "'same.ipynb' is several clients"),
        (("suspend", "k"), "'k' is several clients"),
        (("resume", ""), "'' is no client"),
    ):
        done = command(*words, "--socket", coordinator.path)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr and "same.ipynb (ka), same.ipynb (kb)" in done.stderr
