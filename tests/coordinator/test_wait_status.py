"""Tests of the reply to `wait_status`: its fields, its visibility, and a request over the kernel's own connection."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.coordinator.views.snapshot import user_name
from jupyter_gpushare.wire import messages

from .conftest import LONG_QUANTUM, OTHER_UID, Connect, CoordinatorProcess, ProcessFactory, ask
from .protocol_process import ProtocolProcess, wait_until


def wait_status(coordinator: CoordinatorProcess, client: str) -> Any:
    return coordinator.request(messages.WaitStatus(client=client))


def test_wait_status_has_the_running_client_and_the_expected_wait(
    pair: tuple[ProtocolProcess, ProtocolProcess], idle_coordinator: CoordinatorProcess
) -> None:
    status = wait_status(idle_coordinator, "b")
    assert (status["waiting"], status["suspended"], status["queue_position"]) == (True, False, 1)
    assert (status["has_turn"], status["turn_count"]) == (False, 0)
    assert 0 < status["waited_seconds"] <= status["wait_seconds"] < 30
    (running,) = status["running"]
    assert (running["client"], running["label"]) == ("a", "a.ipynb")
    assert 0 < running["seconds_left"] <= LONG_QUANTUM
    # Both values are times until the end of the turn.
    assert status["expected_wait"] == pytest.approx(running["seconds_left"], abs=0.1)
    status = wait_status(idle_coordinator, "a")
    assert (status["waiting"], status["waited_seconds"], status["queue_position"], status["running"]) == (
        False,
        0.0,
        None,
        [],
    )
    assert (status["has_turn"], status["turn_count"]) == (True, 1)


def test_a_kernel_asks_over_its_own_connection_between_its_cells(
    pair: tuple[ProtocolProcess, ProtocolProcess], idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    kernel = processes.kernel("b")
    kernel.cell("start", "1")
    assert ask(kernel, "wait_status", client="b")["waiting"] is True
    kernel.cell("start", "2")
    assert ask(kernel, "wait_status", client="unknown") == "unknown_client"
    client = idle_coordinator.client("b")
    assert client and client["cells"] == 2


def test_wait_status_shows_only_the_user_of_other_clients(
    coordinator: CoordinatorProcess, processes: ProcessFactory, as_other_user: Connect
) -> None:
    other = as_other_user()
    ask(other, "register", client="theirs", token="t", label="their/secret.ipynb")
    coordinator.request(messages.Register(client="mine", token="secret", label="my/secret.ipynb"))
    mine = processes("mine")
    mine.run_turn()
    assert ask(other, "wait_status", client="mine") == "forbidden"
    theirs = processes("theirs", connect=False, token="t")
    theirs.send_hello(through=as_other_user())
    theirs.start_waiting()
    wait_until(lambda: ask(other, "wait_status", client="theirs")["waiting"])
    status = ask(other, "wait_status", client="theirs")
    (running,) = status["running"]
    assert (running["client"], running["label"], running["user"]) == ("mine", "", user_name("0"))
    coordinator.end_turn(mine)
    mine.start_waiting()
    wait_until(lambda: wait_status(coordinator, "mine")["running"])
    (running,) = wait_status(coordinator, "mine")["running"]
    assert (running["label"], running["user"]) == ("", user_name(str(OTHER_UID)))
