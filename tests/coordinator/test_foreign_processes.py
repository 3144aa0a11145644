"""Tests of foreign processes in the snapshot: the processes that count, and the visibility of their owners."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.coordinator.gpu import simulated_driver
from jupyter_gpushare.coordinator.gpu.nvml import Nvml
from jupyter_gpushare.coordinator.host.user_database import user_name
from jupyter_gpushare.coordinator.monitoring.foreign_processes import ForeignProcesses, find_foreign
from jupyter_gpushare.coordinator.transport.peer_identity import Identity
from jupyter_gpushare.coordinator.views.snapshot_visibility import SnapshotEncoder

HERE, PARENT = os.getpid(), os.getppid()
ELSEWHERE = 1 << 22  # a pid above the largest one, which only another namespace can have
ME = user_name(str(os.getuid()))


def test_foreign_processes_exclude_clients() -> None:
    assert find_foreign({HERE: 3, PARENT: 5}, {PARENT}) == [{"pid": HERE, "user": ME, "memory": 3}]
    assert find_foreign({PARENT: 5}, {PARENT}) == []


def test_a_client_that_connects_again_is_no_foreign_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that was stopped finds all connections ended, and the processes connect again within a second."""
    monkeypatch.setattr(simulated_driver, "processes", lambda: {"gpu": {HERE: 3, PARENT: 5}})
    devices: Any = {"gpu": SimpleNamespace(info=SimpleNamespace(simulated=True))}
    client: Any = SimpleNamespace(
        connection=SimpleNamespace(pid=HERE), devices=("gpu",), sample_context_memory=lambda size: None
    )
    foreign = ForeignProcesses(Nvml())

    def pids(*handles: Any) -> list[int]:
        foreign.sample(devices, handles)
        return [one["pid"] for one in foreign.on_device("gpu")]

    assert pids(client) == []
    assert pids(client) == [PARENT]
    assert pids() == [PARENT]
    assert pids(client) == [PARENT]


@pytest.mark.parametrize(("clients", "expected"), [(0, 2), (1, 1), (2, 0), (3, 0)])
def test_process_ids_of_another_namespace_are_not_matched(clients: int, expected: int) -> None:
    own = {HERE, PARENT, 1}
    present = {ELSEWHERE: 1, ELSEWHERE + 1: None, **dict.fromkeys(sorted(own)[clients:], 7)}
    assert find_foreign(present, own) == [{"pid": None, "user": None, "memory": None}] * expected


@pytest.mark.parametrize(("viewer", "expected"), [(65534, [None, "another user"]), (0, ["ada", "another user"])])
def test_owner_of_a_foreign_process_is_visible_to_that_user_and_admins(
    monkeypatch: pytest.MonkeyPatch, viewer: int, expected: list[str | None]
) -> None:
    monkeypatch.setattr("jupyter_gpushare.coordinator.views.snapshot_visibility.user_name", lambda uid: "another user")
    foreign: list[dict[str, Any]] = [
        {"pid": 1, "user": "ada", "memory": 5},
        {"pid": 2, "user": "another user", "memory": 6},
    ]
    status = {"devices": [{"uuid": "gpu", "foreign_processes": foreign}], "clients": [], "coordinator": {}}
    view = msgspec.json.decode(SnapshotEncoder(status, {}).for_user(Identity(str(viewer), viewer == 0, 1, viewer)))
    assert [one["user"] for one in view["devices"][0]["foreign_processes"]] == expected
    assert [one["pid"] for one in view["devices"][0]["foreign_processes"]] == [1, 2]
