"""Tests of a coordinator that takes over from a killed one, with the turn and the settings; and of unregistration."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import IN, OUT

from .conftest import OTHER_UID, CoordinatorProcess, ProcessFactory
from .protocol_process import wait_until
from .test_turns import is_locked


def test_a_running_turn_is_adopted_with_page_quota_and_lock(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """The limit allows a turn of 49 s, and a limit of 50 % one of half a second."""
    a, b = processes("a"), processes("b")
    changes = {"memory": "3GiB", "share": 0.25, "limit": "99%", "service": "offline", "resident": "1GiB"}
    coordinator.request(messages.SetQuota(client="a", changes=changes))
    quota = (coordinator.client("a") or {})["quota"]
    a.run_turn()
    turn_number = a.turn.turn
    coordinator.stop(signal.SIGKILL)
    assert (a.phase, is_locked()) == (IN, True), "the process did not run on with its lock"

    coordinator.start()
    for process in (b, a):
        process.disconnect()
        assert process.send_hello() == "welcome"
    assert (a.phase, a.turn.turn) == (IN, turn_number)
    assert b.phase == OUT
    client = coordinator.client("a")
    assert client and (client["phase"], client["quota"]) == ("running", quota)
    assert quota["memory"] == 3 << 30
    b.start_waiting()
    a.end_turn()
    b.wait_phase(IN)


@pytest.mark.parametrize(("number", "is_kept"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_settings_changed_live_outlive_a_killed_coordinator(
    coordinator: CoordinatorProcess, processes: ProcessFactory, number: int, is_kept: bool
) -> None:
    before = coordinator.status()["config"]
    coordinator.request(messages.Config(changes={"time_quantum": "7", "default_quota": "memory=1GiB"}))
    coordinator.request(messages.Config(changes={"idle_release": 3}))
    coordinator.stop(number)
    coordinator.start()
    after = coordinator.status()["config"]
    changed = before | {"time_quantum": 7, "default_quota": {"memory": "1GiB"}, "idle_release": 3}
    assert after == (changed if is_kept else before)
    process = processes("a")
    assert process.control.quantum_ns == after["time_quantum"] * 10**9
    assert (process.control.memory_limit == 1 << 30) == is_kept


@pytest.mark.parametrize("stored", ["", '{"time_quantum": -1}', '{"colour": 1}', "7", "\x00"])
def test_invalid_settings_file_is_ignored(coordinator: CoordinatorProcess, stored: str) -> None:
    before = coordinator.status()["config"]
    coordinator.stop(signal.SIGKILL)
    Path(coordinator.path + ".settings").write_text(stored)
    coordinator.start()
    assert coordinator.status()["config"] == before
    assert not Path(coordinator.path + ".settings").exists()


def test_settings_file_of_another_user_is_ignored(coordinator: CoordinatorProcess) -> None:
    """The socket may be in a folder to which other users write."""
    if os.getuid() != 0:
        pytest.skip("needs root for a second user")
    before = coordinator.status()["config"]
    stored = Path(coordinator.path + ".settings")
    target = stored.with_name("target")
    for is_link in (False, True):
        coordinator.stop(signal.SIGKILL)
        (target if is_link else stored).write_text('{"time_quantum": 7}')
        if is_link:
            stored.symlink_to(target)
        os.chown(stored, OTHER_UID, OTHER_UID, follow_symlinks=False)
        coordinator.start()
        assert coordinator.status()["config"] == before


def test_unregistered_client_is_dropped(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    a = processes("a")
    coordinator.request(messages.Unregister(client="a"))
    assert coordinator.client("a"), "the client was removed while its process lived"
    a.close()
    wait_until(lambda: coordinator.client("a") is None)
    coordinator.request(messages.Register(client="b", token="t"))
    coordinator.request(messages.Unregister(client="b"))
    assert coordinator.client("b") is None
