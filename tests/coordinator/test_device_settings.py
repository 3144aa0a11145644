"""Tests of settings of single devices in a running coordinator: at its start, live, in views and after a restart."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.wire import messages

from .conftest import QUANTUM, CoordinatorProcess, ProcessFactory
from .protocol_process import wait_until

A, B = "GPU-a", "GPU-b"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def own_settings(coordinator: CoordinatorProcess) -> dict[str, Any]:
    return {device["uuid"]: device["settings"] for device in coordinator.status()["devices"]}


def change(coordinator: CoordinatorProcess, **changes: Any) -> Any:
    return coordinator.request(messages.Config(changes=changes))


@pytest.fixture
def two(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> CoordinatorProcess:
    """Provide a coordinator with two devices, of which the setting `devices` names one."""
    idle_coordinator.start("--GpuShare.devices={'GPU-b': {'time_quantum': '40s', 'sharing': 'packed'}}")
    processes("first", A, B)
    return idle_coordinator


def test_settings_of_a_device_at_the_start(two: CoordinatorProcess, processes: ProcessFactory) -> None:
    assert own_settings(two) == {A: {}, B: {"time_quantum": 40.0, "sharing": "packed"}}
    on_a, on_b = processes("on-a", A), processes("on-b", B)
    assert (on_a.control.quantum_ns, on_b.control.quantum_ns) == (round(QUANTUM * 1e9), 40_000_000_000)


def test_settings_of_a_device_change_live(two: CoordinatorProcess, processes: ProcessFactory) -> None:
    on_a, on_b = processes("on-a", A), processes("on-b", B)
    table = change(two, **{"devices.0.time_quantum": 7})["devices"]
    assert table == {"GPU-b": {"time_quantum": 40.0, "sharing": "packed"}, "0": {"time_quantum": 7.0}}
    wait_until(lambda: on_a.control.quantum_ns == 7_000_000_000)
    change(two, **{"devices.0.time_quantum": None, "devices.GPU-b.time_quantum": ""})
    assert own_settings(two) == {A: {}, B: {"sharing": "packed"}}
    wait_until(lambda: on_a.control.quantum_ns == on_b.control.quantum_ns == round(QUANTUM * 1e9))
    assert change(two, devices="{0: {'policy': 'fair'}}")["devices"] == {"0": {"policy": "fair"}}
    assert own_settings(two) == {A: {"policy": "fair"}, B: {}}


def test_a_live_setting_counts_before_those_of_other_keys(two: CoordinatorProcess) -> None:
    change(two, devices={"0": {"sharing": "packed"}, "GPU-a": {"policy": "fair"}})
    change(two, **{"devices.0.policy": "interactive"})
    assert own_settings(two)[A] == {"sharing": "packed", "policy": "interactive"}
    two.stop(signal.SIGKILL)
    two.start()
    assert list(two.status()["config"]["devices"]) == ["GPU-a", "0"]


def test_equal_keys_of_a_device_are_merged(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    idle_coordinator.start("--GpuShare.devices={0: {'policy': 'fair'}, '0': {'sharing': 'packed'}}")
    processes("first", A)
    assert own_settings(idle_coordinator)[A] == {"policy": "fair", "sharing": "packed"}


def test_settings_of_a_device_outlive_a_killed_coordinator(two: CoordinatorProcess, processes: ProcessFactory) -> None:
    change(two, **{"devices.GPU-a.max_hold": 5})
    two.stop(signal.SIGKILL)
    two.start()
    processes("again", A, B)
    assert own_settings(two) == {A: {"max_hold": 5.0}, B: {"time_quantum": 40.0, "sharing": "packed"}}


def test_an_entry_without_a_device_is_a_problem_until_the_device_is_there(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    idle_coordinator.start("--GpuShare.devices={'GPU-b': {'policy': 'fair'}, 'H900': {'policy': 'fair'}}")
    processes("first", A, B)
    problems = idle_coordinator.status()["coordinator"]["problems"]
    assert [problem for problem in problems if "GPU-b" in problem] == []
    assert [problem for problem in problems if "'H900', which this host does not have" in problem]
    assert "the setting devices names 'H900'" in idle_coordinator.log.read_text()


def test_commands_show_and_change_the_settings_of_a_device(two: CoordinatorProcess, command: Run) -> None:
    done = command("config", "devices.GPU-a.policy", "interactive", "--socket", two.path)
    assert (done.returncode, done.stderr) == (0, "")
    name, _, table = done.stdout.partition(" = ")
    assert (name, json.loads(table)["GPU-a"]) == ("devices", {"policy": "interactive"})
    shown = command("status", "--socket", two.path).stdout
    for words in ("policy interactive", "time_quantum 40.0", "sharing packed", "policy fcfs, quantum 0.2 s"):
        assert words in shown
    wrong = command("config", "devices.GPU-z.policy", "fair", "--socket", two.path)
    assert wrong.returncode == 2 and "'GPU-z' does not exist" in wrong.stderr


def test_a_hold_without_a_time_is_as_long_as_the_device_allows(
    two: CoordinatorProcess, processes: ProcessFactory
) -> None:
    change(two, **{"devices.GPU-b.max_hold": 5})
    processes("on-a", A), processes("on-b", B)
    left = {name: two.request(messages.Hold(client=name))["hold_seconds_left"] for name in ("on-a", "on-b")}
    assert left["on-a"] > 590 and 4 < left["on-b"] <= 5


def test_a_client_has_the_notes_of_its_device(two: CoordinatorProcess, processes: ProcessFactory) -> None:
    change(two, **{"devices.GPU-b.policy": "fair"})
    devices = {"on-a": A, "on-b": B, "offline-on-a": f"{A} service=offline", "offline-on-b": f"{B} service=offline"}
    for name, words in devices.items():
        two.request(messages.Register(client=name, token="secret", quota=f"share=0.2 device={words}"))
        processes(name, words.split()[0])
    notes = {client["id"]: " ".join(client["notes"]) for client in two.status()["clients"]}
    assert "the policy fcfs ignores shares" in notes["on-a"] and notes["on-b"] == ""
    assert notes["offline-on-b"] == "share 0.2 holds among offline clients only: online clients go first"
    assert notes["offline-on-a"] == notes["on-a"]
