"""Tests of the commands `jupyter gpushare status` and `config`: output, errors and exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jupyter_gpushare.cli.status import render
from jupyter_gpushare.cluster.start_records import StartRecord
from jupyter_gpushare.wire import messages

from .conftest import LONG_QUANTUM, QUANTUM, CoordinatorProcess, ProcessFactory
from .protocol_process import UUID, wait_until

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def scene(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> CoordinatorProcess:
    """Provide a coordinator with a running, a waiting and an idle client, with special characters in the labels."""
    idle_coordinator.start(quantum=LONG_QUANTUM)
    for name, label in (("runs", "[/b] thesis [red].ipynb"), ("waits", "models/β.ipynb"), ("idle", "")):
        idle_coordinator.request(messages.Register(client=name, token="secret", label=label, quota="memory=2GiB"))
    runs, waits = processes("runs"), processes("waits")
    processes("idle")
    runs.allocate(1 << 30)
    runs.run_turn()
    waits.start_waiting()
    wait_until(lambda: runs.contended)
    return idle_coordinator


def test_status_as_json(scene: CoordinatorProcess, command: Run) -> None:
    done = command("status", "--json", "--socket", scene.path)
    assert (done.returncode, done.stderr) == (0, "")
    status = json.loads(done.stdout)
    assert {"devices", "clients", "config", "coordinator"} <= status.keys()
    assert status["starts"] == []
    (device,) = status["devices"]
    assert (device["uuid"], device["name"], device["simulated"]) == (UUID, "Simulated GPU", True)
    assert (device["memory_total"], device["memory_used"], device["queue"]) == (8 << 30, 1 << 30, ["waits"])
    (grant,) = device["grants"]
    assert grant["client"] == "runs"
    assert 0 <= grant["granted_seconds"] <= LONG_QUANTUM
    assert 0 < grant["seconds_left"] <= LONG_QUANTUM
    clients = {client["id"]: client for client in status["clients"]}
    runs, waits, idle = (clients[name] for name in ("runs", "waits", "idle"))
    assert [runs["phase"], waits["phase"], idle["phase"]] == ["running", "waiting", "idle"]
    assert (runs["label"], runs["allocated"], runs["resident"]) == ("[/b] thesis [red].ipynb", 1 << 30, 1 << 30)
    assert (runs["turn_count"], runs["queue_position"], runs["expected_wait"]) == (1, None, None)
    assert (waits["turn_count"], waits["queue_position"]) == (0, 1)
    assert 0 < waits["expected_wait"] <= LONG_QUANTUM
    assert waits["wait_seconds"] > 0 == waits["gpu_seconds"]
    assert runs["gpu_seconds"] > 0
    assert idle["queue_position"] is None


def test_status_as_text(scene: CoordinatorProcess, command: Run) -> None:
    done = command("status", "--socket", scene.path)
    assert done.returncode == 0, done.stderr
    for words in (
        "[/b] thesis [red].ipynb",
        "models/β.ipynb",
        "#1 in queue",
        "1 GiB",
        "memory=2GiB",
        "SIMULATED",
        "on device",
    ):
        assert words in done.stdout


def printed(status: dict[str, Any], width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(render(status))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_status_fits_a_terminal_of_80_columns(scene: CoordinatorProcess) -> None:
    """Labels and usual states are whole, while every column has a value."""
    status = scene.status()
    clients = [{**one, "context_memory": 500 << 20, "host_pageable": 1 << 30} for one in status["clients"]]
    text = printed({**status, "clients": clients}, width=80)
    for words in ("models/β.ipynb", "#1 in queue", "memory=2GiB", "500 MiB", "GPU time", "turns"):
        assert words in text, text
    assert max(map(len, text.splitlines())) <= 80


def test_status_shows_the_device_of_each_client_where_there_are_several(scene: CoordinatorProcess) -> None:
    def memory_rows(text: str) -> list[list[str]]:
        return [line.split() for line in text.split("Memory")[1].splitlines() if "allocated" in line or " B" in line]

    status = scene.status()
    assert memory_rows(printed(status))[0][:2] == ["label", "allocated"]
    first = status["devices"][0]
    second = {**first, "uuid": "GPU-second", "grants": [], "queue": []}
    clients = [{**one, "devices": ["GPU-second"]} for one in status["clients"]]
    text = printed({**status, "devices": [first, second], "clients": clients})
    assert f"1: {first['name']}" in text
    heading, *rows = memory_rows(text)
    assert heading[:3] == ["label", "device", "allocated"]
    assert rows and all("1" in row for row in rows)


def test_status_shows_the_utilisation_of_a_device(scene: CoordinatorProcess) -> None:
    status = scene.status()

    def shown(**known: object) -> str:
        return printed({**status, "devices": [{**status["devices"][0], **known}]})

    assert " 73% " in shown(utilisation=0.73, utilisation_is_estimate=False)
    assert " ~73% " in shown(utilisation=0.73, utilisation_is_estimate=True)
    assert " ? " in shown(utilisation=None)


def test_status_shows_the_starts_that_wait_for_a_node(scene: CoordinatorProcess) -> None:
    refused = StartRecord(
        kernel="k1",
        label="[/b]\n.ipynb",
        session="",
        nodes=["n1", "n2"],
        position=2,
        since=time.time() - 5,
        expected_at=time.time() + 150,
        message="n1 has 0 of its share left",
    )
    text = printed({**scene.status(), "starts": [refused.view("")]})
    assert re.search(r"\[/b\]\?\.ipynb waits for a node \(n1, n2\): #2, about 3 min; \d+ s so far; n1", text), text


def test_status_shows_that_a_turn_may_end_early(scene: CoordinatorProcess) -> None:
    status = scene.status()
    device = {**status["devices"][0], "grants": [{**status["devices"][0]["grants"][0], "seconds_left": 9.0}]}

    def shown(expected: float) -> str:
        clients = [{**one, "expected_wait": expected if one["queue_position"] else None} for one in status["clients"]]
        return printed({**status, "devices": [device], "clients": clients})

    assert "up to 9 s left" in shown(3.0)
    assert "9 s left" in shown(9.0) and "up to" not in shown(9.0)
    assert "holds the device" not in shown(9.0)
    device["grants"][0]["held"] = True
    assert "holds the device, 9 s left" in shown(9.0)


def test_status_shows_idle_policy_and_limits(scene: CoordinatorProcess) -> None:
    status = scene.status()

    def shown(**known: object) -> str:
        clients = [{**one, "idle_seconds": 1860.0, **known} for one in status["clients"] if one["id"] == "idle"]
        return printed({**status, "clients": clients, "devices": []})

    assert "idle · unused for 31 min " in shown(state_text="idle")
    assert "idle · unused for 31 min · memory moves off in 5 min " in shown(
        state_text="idle", idle_warned=True, evicted_in=300.0
    )
    text = "at most 30 % of the device's time"
    assert "idle: at most 30 % of" in shown(limit_text=text)
    limits = [{"since": time.time() - seconds, "text": text} for text, seconds in (("a; b", 7230), ("c", 10830))]
    assert "idle: a; b (for 2 h); c (for 3 h)" in shown(limit_text="a; b; c", limits=limits)


def test_status_shows_context_memory_where_it_is_known(scene: CoordinatorProcess) -> None:
    status = scene.status()

    def shown(*sizes: int) -> str:
        clients = [{**one, "context_memory": size} for one, size in zip(status["clients"], sizes, strict=True)]
        return printed({**status, "clients": clients})

    assert "contexts" not in shown(0, 0, 0)
    text = shown(0, 500 << 20, 0)
    assert "contexts: device memory for contexts and code" in text
    (row,) = (line for line in text.splitlines() if "500 MiB" in line)
    assert "models/β.ipynb" in row


def test_status_is_followed_also_by_another_coordinator(scene: CoordinatorProcess) -> None:
    argv = [sys.executable, "-m", "jupyter_gpushare", "status", "--watch", "--json", "--socket", scene.path]
    watching = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout
    assert json.loads(watching.stdout.readline())["config"]["time_quantum"] == LONG_QUANTUM
    scene.request(messages.Config(changes={"time_quantum": 30}))
    while json.loads(watching.stdout.readline())["config"]["time_quantum"] != 30:
        pass
    scene.stop(signal.SIGKILL)
    while "unavailable" not in json.loads(watching.stdout.readline()):
        pass
    scene.start()
    assert "devices" in json.loads(watching.stdout.readline())
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    assert (watching.returncode, errors) == (130, "")


def test_watch_ends_with_its_reader(scene: CoordinatorProcess) -> None:
    """`status --watch | head` prints each state at once, and no error when the reader ends."""
    argv = f"{sys.executable} -m jupyter_gpushare status --watch --socket {scene.path} | head -4"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", argv], capture_output=True, text=True, timeout=60)
    assert "Devices" in done.stdout and done.stdout.count("\n") == 4
    assert done.stderr == ""


def test_config_is_read_and_changed(coordinator: CoordinatorProcess, command: Run) -> None:
    def config(*words: str) -> tuple[int, str]:
        done = command("config", *words, "--socket", coordinator.path)
        return done.returncode, done.stdout

    status, everything = config()
    assert status == 0
    assert f"time_quantum = {QUANTUM}" in everything.splitlines()
    assert config("devices_are_simulated") == (0, "devices_are_simulated = false\n")
    assert config("time_quantum") == (0, f"time_quantum = {QUANTUM}\n")
    assert config("time_quantum", "10") == (0, "time_quantum = 10.0\n")
    assert coordinator.status()["config"]["time_quantum"] == 10
    note = "note: open kernels and running programs keep their memory mode until they are restarted\n"
    assert config("memory_mode", "swap") == (0, f'memory_mode = "swap"\n{note}')
    switched_off = config("hibernate_after", "never")[1]
    assert switched_off.startswith("hibernate_after = 0.0\n")
    assert "a hibernated kernel stays so until its next use" in switched_off
    assert config("memory_mode") == (0, 'memory_mode = "swap"\n')
    assert "a kernel of mode unified does not hibernate" in config("hibernate_after", "30min")[1]
    assert config("default_quota", "memory=8GiB share=0.5")[0] == 0
    assert coordinator.status()["config"]["default_quota"] == {"memory": "8GiB", "share": "0.5"}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("time_quantum", "soon"), "time_quantum='soon' is not a number: allowed are 0.001 to 86400 seconds"),
        (("colour",), "unknown setting 'colour'"),
        (("colour", "red"), "'colour' is unknown"),
    ],
    ids=str,
)
def test_config_refuses_nonsense(
    shared_coordinator: CoordinatorProcess, command: Run, words: tuple[str, ...], error: str
) -> None:
    done = command("config", *words, f"--socket={shared_coordinator.path}")
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["status", "config"])
def test_command_without_a_coordinator_fails(name: str, command: Run, folder: Path) -> None:
    done = command(name, "--socket", str(folder / "none.sock"))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"jupyter gpushare {name}: no coordinator answers at {folder}/none.sock" in done.stderr


@pytest.mark.parametrize("name", ["status", "config", "doctor"])
def test_a_stopped_coordinator_is_named_with_a_remedy(name: str, coordinator: CoordinatorProcess, command: Run) -> None:
    with coordinator.stopped():
        done = command(name, "--socket", coordinator.path)
    said = done.stdout + done.stderr
    assert f"a coordinator, pid {coordinator.pid}, holds the socket {coordinator.path} and is stopped" in said
    assert f"'kill -CONT {coordinator.pid}' continues the coordinator" in said
    assert "starts a coordinator" not in said


def test_commands_use_the_socket_of_the_configuration(
    coordinator: CoordinatorProcess, command: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "jupyter_gpushare_config.py"
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(folder))
    monkeypatch.setenv("GPUSHARE_SOCKET", str(folder / "other.sock"))
    file.write_text(f"c.GpuShare.coordinator = {coordinator.path!r}\n")
    assert (command("config", "policy").stdout, command("status").returncode) == ('policy = "fcfs"\n', 0)
    assert "other.sock" in command("status", "--socket", str(folder / "other.sock")).stderr

    file.write_text("c.GpuShare.coordinator = 'c.sock'\n")
    done = command("status")
    assert done.returncode == 1
    assert "c.GpuShare.coordinator: the socket address 'c.sock' is not an absolute path" in done.stderr

    file.write_text("c.GpuShare.coordinator = socket\n")
    assert f"{file}, line 1: NameError: name 'socket' is not defined" in command("status").stderr


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        ((), 2, ""),
        (("dance",), 2, "invalid choice: 'dance'"),
        (("quota",), 2, "the following arguments are required: CLIENT\n"),
        (("status", "--socket", "x"), 1, "is not an absolute path"),
    ],
    ids=str,
)
def test_unknown_words_are_refused(command: Run, words: tuple[str, ...], status: int, error: str) -> None:
    done = command(*words)
    assert done.returncode == status
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_status_marks_simulated_devices_of_programs(
    coordinator: CoordinatorProcess, processes: ProcessFactory, command: Run
) -> None:
    processes("a")
    done = command("config", "--socket", coordinator.path)
    assert {"simulate = false", "devices_are_simulated = true"} <= set(done.stdout.splitlines())


def test_version_and_help(command: Run) -> None:
    assert command("--version").stdout.strip() == "0.1.0"
    output = command("--help").stdout
    for name in ("coordinator", "status", "config", "run", "kernelspec", "doctor", "demo", "bench"):
        assert name in output


def test_the_environment_names_the_socket(coordinator: CoordinatorProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare", "status", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "GPUSHARE_SOCKET": f"unix:{coordinator.path}"},
    )
    assert json.loads(done.stdout)["coordinator"]["pid"] == coordinator.pid
