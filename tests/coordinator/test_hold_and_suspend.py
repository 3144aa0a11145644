"""Tests of hold, suspend, resume and the client commands, by message, by command and across coordinators."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import CLOSING, IN

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import ProtocolProcess, wait_until
from .test_status_and_config_commands import Run


@pytest.fixture
def coordinator(long_quantum_coordinator: CoordinatorProcess) -> CoordinatorProcess:
    return long_quantum_coordinator


def phase(coordinator: CoordinatorProcess, name: str) -> str:
    client = coordinator.client(name)
    assert client
    return str(client["phase"])


def test_hold_keeps_the_gate_open_past_the_quantum(
    coordinator: CoordinatorProcess, pair: tuple[ProtocolProcess, ProtocolProcess]
) -> None:
    a, b = pair
    result = coordinator.request(messages.Hold(client="a", seconds="5min"))
    assert result["running"] and 299 < result["hold_seconds_left"] <= 300
    # The agent ends the turn at the deadline, so the permit must have the new deadline.
    wait_until(lambda: a.permit.deadline_ns > a.control.heartbeat_ns + 290e9)
    client = coordinator.client("a")
    assert client and 290 < client["hold_seconds_left"] <= 300
    assert coordinator.request(messages.Hold(client="b"))["running"] is False
    assert coordinator.request(messages.Release(client="b")) == {"released": True, "turn": False, "hold": True}
    assert coordinator.request(messages.Release(client="b")) == {"released": False, "turn": False, "hold": False}
    assert coordinator.request(messages.Release(client="a")) == {"released": True, "turn": True, "hold": True}
    a.end_turn()
    b.wait_phase(IN)


def test_a_program_that_holds_is_running_until_it_is_idle(
    coordinator: CoordinatorProcess, pair: tuple[ProtocolProcess, ProtocolProcess]
) -> None:
    def is_held() -> bool:
        return bool(coordinator.request(messages.WaitStatus(client="b"))["running"][0]["held"])

    a, _ = pair
    coordinator.request(messages.Hold(client="a", seconds="5min"))
    assert not is_held()
    a.finish()
    wait_until(is_held)
    a.submissions += 1
    a.is_working = True
    wait_until(lambda: not is_held())


def test_a_client_resumed_while_its_process_was_away_stays_so(
    coordinator: CoordinatorProcess, pair: tuple[ProtocolProcess, ProtocolProcess]
) -> None:
    _, b = pair
    coordinator.request(messages.Suspend(client="b"))
    b.disconnect()
    wait_until(lambda: not (coordinator.client("b") or {})["processes"])
    coordinator.request(messages.Resume(client="b"))
    b.send_hello()
    assert phase(coordinator, "b") != "suspended"


def test_evict_reports_only_the_bytes_that_can_leave(
    coordinator: CoordinatorProcess, pair: tuple[ProtocolProcess, ProtocolProcess]
) -> None:
    a, _ = pair
    for unmovable, movable in ((3, 1), (4, 0)):
        a.allocate(4)
        a.report.unmovable = unmovable
        assert coordinator.request(messages.Evict(client="a")) == {"evicting": movable > 0, "bytes": movable}


def test_client_commands_succeed(
    coordinator: CoordinatorProcess, pair: tuple[ProtocolProcess, ProtocolProcess], command: Run
) -> None:
    def run(*words: str) -> str:
        done = command(*words, "--socket", coordinator.path)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    a, _ = pair
    assert run("hold", "a.ipynb", "5min") == "a.ipynb: the client keeps the GPU for 5 min, also between cells\n"
    assert "held for" in run("status")
    assert run("hold", "a", "0") == "a.ipynb: the client no longer holds the GPU\n"
    assert run("suspend", "b") == "b.ipynb: the client gets no turns until you resume it\n"
    assert "already" in run("suspend", "b")
    assert "suspended" in run("status")
    assert run("resume", "b") == "b.ipynb: the client takes turns again\n"
    assert "not suspended" in run("resume", "b")
    assert a.phase == IN, "a turn without waiting clients has ended"
    whole = "memory=none is all of the device's memory, 8 GiB"
    assert run("quota", "b") == f"b.ipynb: share=0 limit=1 memory=none resident=none class=online; {whole}\n"
    changed = "b.ipynb: share=0.25 limit=1 memory=2GiB resident=none class=offline\nnote: share 0.25 counts in"
    assert run("quota", "b", "share=25%", "memory=2GiB", "class=Offline").startswith(changed)
    assert run("quota", "b").startswith(changed)
    assert run("evict", "b") == "b.ipynb: the client has no memory on the device that can be moved\n"
    a.allocate(512 << 20)
    assert run("evict", "a") == "a.ipynb: 512 MiB move off the device and return with the next turn\n"
    run("hold", "b", "1min")
    assert run("release", "b") == "b.ipynb: its hold ends; the client has no turn at present\n"
    assert run("release", "b") == "b.ipynb: the client has no turn and no hold\n"
    assert run("release", "a") == "a.ipynb: its turn ends\n"
    a.wait_phase(CLOSING)


def test_a_client_whose_kernel_has_ended_is_marked_and_gives_way_to_a_living_one(
    coordinator: CoordinatorProcess, pair: tuple[ProtocolProcess, ProtocolProcess], command: Run
) -> None:
    """Such a client stays for a minute, and its notebook may have a new kernel meanwhile."""
    coordinator.request(messages.Register(client="ended", token="secret", label="a.ipynb", quota="share=0.5"))
    shown = " ".join(command("status", "--socket", coordinator.path).stdout.split())
    assert shown.count("a.ipynb: no process of the client is connected: its kernel has ended") == 1
    assert shown.count("is connected") == 1
    assert command("suspend", "a.ipynb", "--socket", coordinator.path).returncode == 0
    assert (phase(coordinator, "a"), phase(coordinator, "ended")) == ("suspended", "idle")


def test_invalid_quota_is_refused_with_the_allowed_values(
    coordinator: CoordinatorProcess, pair: tuple[ProtocolProcess, ProtocolProcess], command: Run
) -> None:
    for words, message in (
        (("share=2",), "allowed is a fraction from 0 to 1"),
        (("class=online", "service=online"), "two names of the same option"),
        (("class=vip",), "class='vip' is unknown: allowed are online, offline"),
    ):
        done = command("quota", "a", *words, "--socket", coordinator.path)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


def test_command_for_no_or_several_clients_lists_the_clients(
    coordinator: CoordinatorProcess, processes: ProcessFactory, command: Run
) -> None:
    for name in ("ka", "kb"):
        coordinator.request(messages.Register(client=name, token="secret", label="same.ipynb"))
    for words, message in (
        (("release", "other"), "no client has the label or id 'other'"),
        (("release", "same.ipynb"), "'same.ipynb' matches several clients"),
        (("suspend", "k"), "'k' matches several clients"),
        (("resume", ""), "no client has the label or id ''"),
    ):
        done = command(*words, "--socket", coordinator.path)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr and "same.ipynb (ka), same.ipynb (kb)" in done.stderr
