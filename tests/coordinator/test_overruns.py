"""Tests of overruns with a real coordinator and fake processes: notes to users, interrupts and audit records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import CLOSING, IN, LEAVING, OUT

from ..hostile.in_process_coordinator import WELL_BEHAVED_UID, InProcessCoordinator, WellBehavedClient
from ..hostile.virtual_loop import VirtualLoop
from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import ProtocolProcess, wait_until


def overrun(coordinator: CoordinatorProcess, processes: ProcessFactory) -> tuple[ProtocolProcess, ProtocolProcess]:
    stuck, waits = processes("stuck"), processes("waits")
    stuck.run_turn()
    waits.start_waiting()
    stuck.wait_phase(CLOSING)
    wait_until(lambda: (coordinator.client("stuck") or {})["phase"] == "overrun")
    return stuck, waits


def notes(coordinator: CoordinatorProcess, client: str) -> list[str]:
    return list((coordinator.client(client) or {})["notes"])


def test_overrun_interrupts_the_kernel_once(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory, folder: Path
) -> None:
    state = folder / "state"
    coordinator = idle_coordinator
    coordinator.start(
        f"--CoordinatorApp.state_directory={state}", "--GpuShare.overrun=interrupt", "--GpuShare.overrun_patience=600"
    )
    stuck, waits = overrun(coordinator, processes)
    assert notes(coordinator, "stuck")[0].endswith("if this lasts, its kernel will be asked to interrupt its cell")
    sequence = stuck.control.interrupt_seq
    coordinator.request(messages.Config(changes={"overrun_patience": 1}))
    wait_until(lambda: (coordinator.client("stuck") or {})["interrupt_requested"])
    assert "and does that when the running call returns" in notes(coordinator, "stuck")[0]
    assert (coordinator.client("waits") or {})["interrupt_requested"] is False and notes(coordinator, "waits") == []
    assert stuck.control.interrupt_seq == sequence, (
        "the coordinator interrupted the calls instead of the Jupyter server"
    )
    _, *found = [json.loads(line) for line in (state / "audit.log").read_text().splitlines()]  # first the setting
    assert [(entry["what"], entry["subject"], entry["user"], entry["pid"]) for entry in found] == [
        ("interrupt", "stuck", None, coordinator.pid)
    ]
    assert found[0]["new"]["overrun_seconds"] >= 8
    assert "asking the kernel of client stuck to interrupt its cell" in coordinator.log.read_text()
    assert waits.phase == OUT
    stuck.drain()
    waits.wait_phase(IN)
    assert (coordinator.client("stuck") or {})["interrupt_requested"] is False


@pytest.mark.nightly  # the core's tests have the rule, and tests/system/test_overruns.py its effect
def test_overrun_is_joined_and_reported(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    coordinator = idle_coordinator
    coordinator.start("--GpuShare.overrun=join", "--GpuShare.overrun_patience=600")
    stuck, waits = overrun(coordinator, processes)
    assert notes(coordinator, "stuck")[0].endswith("if this lasts, clients whose memory fits will run at the same time")
    coordinator.request(messages.Config(changes={"overrun_patience": 1}))
    waits.wait_phase(IN)

    def phases() -> dict[str, Any]:
        return {name: (coordinator.client(name) or {})["phase"] for name in ("stuck", "waits")}

    wait_until(lambda: phases() == {"stuck": "overrun", "waits": "running"})
    assert notes(coordinator, "stuck")[0].endswith("other clients run at the same time")
    assert notes(coordinator, "waits") == [
        "another client's turn is over, and its work has not left the GPU: both clients run at the same time"
    ]
    assert [grant["client"] for grant in coordinator.status()["devices"][0]["grants"]] == ["stuck", "waits"]
    stuck.drain()
    wait_until(lambda: phases() == {"stuck": "idle", "waits": "running"})
    assert notes(coordinator, "waits") == []


def test_eviction_overrun_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    in_process = InProcessCoordinator(
        VirtualLoop(), tmp_path, overrun="interrupt", time_quantum=0.5, sharing="exclusive"
    )
    stuck, waits = (
        WellBehavedClient(in_process, "stuck", "GPU-shared"),
        WellBehavedClient(in_process, "waits", "GPU-shared"),
    )
    stuck.is_moving = lambda: True  # type: ignore[method-assign]
    for process in (stuck, waits):
        process.start_waiting()
        in_process.pass_time(0.1)
        process.run_step()
        in_process.pass_time(0.6)
    for _ in range(2):
        stuck.run_step()
        in_process.pass_time(0.1)
    assert stuck.phase == LEAVING
    in_process.pass_time(100.0)
    (client,) = [
        one for one in in_process.request(messages.Status(), uid=WELL_BEHAVED_UID)["clients"] if one["id"] == "stuck"
    ]
    assert (client["phase"], client["interrupt_requested"]) == ("overrun", False)
    assert client["notes"] == ["its turn is over, and its memory has not left the GPU: other clients wait for that"]
    for process in (stuck, waits):
        process.close()
    in_process.close()
