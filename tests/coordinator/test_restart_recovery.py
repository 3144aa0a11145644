"""Tests of the saved state of clients, which a later coordinator restores from the state store and the pages."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import stat
from pathlib import Path

import pytest

from jupyter_gpushare.coordinator.storage.state_database import ClientRecord, hash_token
from jupyter_gpushare.coordinator.storage.state_store import store_path
from jupyter_gpushare.wire import address, messages
from jupyter_gpushare.wire.client import Client, CoordinatorError, Unreachable

from .conftest import Connect, CoordinatorProcess, ProcessFactory, ask
from .protocol_process import wait_until

RECORD = ClientRecord("1000", hash_token("secret"), '{"share": 0.5}', True)


def file_of(coordinator: CoordinatorProcess) -> Path:
    return store_path(coordinator.path, address.state_directory())


def stored_clients(coordinator: CoordinatorProcess) -> dict[str, ClientRecord]:
    """Return the clients in the state store's file."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file_of(coordinator)}?mode=ro", uri=True)) as file:
            return {row[0]: ClientRecord(*row[1:]) for row in file.execute("SELECT * FROM clients")}
    except sqlite3.OperationalError:  # the file does not exist yet
        return {}


def suspended(coordinator: CoordinatorProcess, client: str) -> bool:
    """Return whether the state store has the client as suspended."""
    record = stored_clients(coordinator).get(client)
    return bool(record and record.suspended)


def warnings(coordinator: CoordinatorProcess) -> list[str]:
    return [
        line
        for line in coordinator.log.read_text().splitlines()
        if " WARNING " in line and ("state_store" in line or "state store" in line)
    ]


def reported_problems(coordinator: CoordinatorProcess) -> str:
    problems = wait_until(lambda: coordinator.status()["coordinator"]["problems"])
    return "\n".join(problems)


def take_turn(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    process = processes("works")
    process.run_turn()
    process.close()


def suspend_and_kill(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """Suspend a, wait until that is stored, and kill the coordinator."""
    processes.kernel("a")
    coordinator.request(messages.Suspend(client="a"))
    wait_until(lambda: suspended(coordinator, "a"))
    coordinator.stop(signal.SIGKILL)


# --- restored state


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kernel_without_gpu_processes_stays_suspended(
    coordinator: CoordinatorProcess, processes: ProcessFactory, number: int
) -> None:
    processes.kernel("a"), processes.kernel("b")
    coordinator.request(messages.SetQuota(client="a", changes={"share": 0.25, "memory": "3GiB"}))
    quota = (coordinator.client("a") or {})["quota"]
    coordinator.request(messages.Suspend(client="a"))
    wait_until(lambda: suspended(coordinator, "a"))
    coordinator.stop(number)
    coordinator.start()
    processes.kernel("a"), processes.kernel("b")
    client, other = coordinator.client("a") or {}, coordinator.client("b") or {}
    assert (client["suspended"], client["quota"]) == (True, quota)
    assert (other["suspended"], other["quota"]["memory"]) == (False, None)
    process = processes("a")
    process.start_waiting()
    wait_until(lambda: (coordinator.client("a") or {})["phase"] == "suspended")
    assert process.control.memory_limit == 3 << 30
    coordinator.request(messages.Resume(client="a"))
    wait_until(lambda: (coordinator.client("a") or {})["phase"] == "running")


def test_change_during_shutdown_is_stored(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """Messages of processes during the shutdown cause no error in the log."""
    for _ in range(3):
        processes.kernel("a")
        others = [processes(f"other-{number}") for number in range(4)]
        accepted = requested = 100 << 20
        with contextlib.suppress(Unreachable, OSError), Client(coordinator.path, timeout=60) as connection:
            while True:
                requested += 1 << 20
                connection.request(messages.SetQuota(client="a", changes={"memory": requested}))
                accepted = requested
                for other in others:
                    other.start_waiting()
                if accepted == 120 << 20:
                    os.kill(coordinator.pid, signal.SIGTERM)
        assert coordinator.wait() == 0
        coordinator.start()
        processes.kernel("a")
        # The coordinator may have executed the last request without a reply.
        assert (coordinator.client("a") or {})["quota"]["memory"] in (accepted, requested)
        coordinator.request(messages.SetQuota(client="a", changes={"memory": 100 << 20}))
        for other in others:
            other.disconnect()


def test_short_client_leaves_no_stored_state(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    processes.kernel("a")
    coordinator.request(messages.SetQuota(client="a", changes={"share": 0.25}))
    coordinator.stop()
    processes.disconnect()
    coordinator.start()
    again = processes.kernel("a")
    assert (coordinator.client("a") or {})["quota"]["share"] == 0.25
    coordinator.request(messages.Unregister(client="a"))
    again.close()
    wait_until(lambda: coordinator.client("a") is None)
    coordinator.stop()
    coordinator.start()
    processes.kernel("a")
    assert (coordinator.client("a") or {})["quota"]["share"] == 0.0


def test_page_overrides_the_state_store(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    process = processes("a")
    coordinator.request(messages.Suspend(client="a"))
    coordinator.request(messages.SetQuota(client="a", changes={"share": 0.5}))
    wait_until(lambda: suspended(coordinator, "a"))
    os.kill(coordinator.pid, signal.SIGSTOP)
    process.control.quota_flags &= ~16  # as if the coordinator had resumed the client and ended before it saved that
    process.control.share_ppm = 750_000
    coordinator.stop(signal.SIGKILL)
    process.disconnect()
    coordinator.start()
    processes.kernel("a")
    assert (coordinator.client("a") or {})["suspended"], "the state of the store was not restored"
    process.send_hello()
    client = coordinator.client("a") or {}
    assert (client["suspended"], client["quota"]["share"]) == (False, 0.75)


def test_later_requests_override_the_page(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    process = processes("a")
    coordinator.stop(signal.SIGKILL)
    process.disconnect()
    coordinator.start()
    processes.kernel("a")
    coordinator.request(messages.Suspend(client="a"))
    coordinator.request(messages.SetQuota(client="a", changes={"share": 0.5}))
    process.send_hello()
    client = coordinator.client("a") or {}
    assert (client["suspended"], client["quota"]["share"]) == (True, 0.5)


def test_refused_returning_client_keeps_its_stored_state(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    suspend_and_kill(coordinator, processes)
    coordinator.start()
    processes("other")
    with pytest.raises(CoordinatorError, match="64"):
        coordinator.request(messages.Register(client="a", token="secret", gpus=64))
    processes.kernel("b")
    wait_until(lambda: "b" in stored_clients(coordinator))
    assert suspended(coordinator, "a")
    processes.kernel("a")
    assert (coordinator.client("a") or {})["suspended"]


def test_client_with_another_token_starts_without_stored_state(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    suspend_and_kill(coordinator, processes)
    coordinator.start()
    processes.kernel("a", "another")
    assert not (coordinator.client("a") or {})["suspended"]
    wait_until(lambda: hash_token("another") in str(stored_clients(coordinator).get("a")))


def test_name_of_a_disconnected_client_stays_reserved(
    coordinator: CoordinatorProcess, processes: ProcessFactory, as_other_user: Connect
) -> None:
    processes.kernel("a")
    wait_until(lambda: "a" in stored_clients(coordinator))
    coordinator.stop(signal.SIGKILL)
    coordinator.start()
    Path(coordinator.path).chmod(0o666)
    assert ask(as_other_user(), "register", client="a", token="secret") == "forbidden"
    processes.kernel("a")


def test_invalid_stored_quota_is_ignored(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    suspend_and_kill(coordinator, processes)
    with contextlib.closing(sqlite3.connect(file_of(coordinator))) as file, file:
        file.execute("UPDATE clients SET quota = ?", ('{"share": 7}',))
    coordinator.start()
    processes.kernel("a")
    client = coordinator.client("a") or {}
    assert (client["suspended"], client["quota"]["share"]) == (True, 0)


def test_state_file_has_no_secrets_and_no_notebook_names(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    coordinator.request(messages.Register(client="a", token="my-token", label="diary.ipynb"))
    wait_until(lambda: "a" in stored_clients(coordinator))
    path = file_of(coordinator)
    files = [one for one in path.parent.iterdir() if one.name.startswith(path.name)]
    assert path in files
    for one in files:
        assert stat.S_IMODE(one.stat().st_mode) == 0o600, one
        assert b"my-token" not in one.read_bytes() and b"diary" not in one.read_bytes()


# --- failures


def test_locked_state_file_delays_no_request(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    processes.kernel("a")
    wait_until(lambda: "a" in stored_clients(coordinator))
    other = sqlite3.connect(file_of(coordinator), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    coordinator.request(messages.Suspend(client="a"))
    assert "locked" in reported_problems(coordinator)
    take_turn(coordinator, processes)
    other.execute("ROLLBACK")
    other.close()
    wait_until(lambda: suspended(coordinator, "a"))
    wait_until(lambda: not coordinator.status()["coordinator"]["problems"])
    assert len(warnings(coordinator)) == 1
