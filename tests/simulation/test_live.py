"""Tests that a scenario takes as long on the simulated driver as in the simulator, and of a recorded trace."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jupyter_gpushare.bench.support import memory_holders
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.simulation import Simulation
from jupyter_gpushare.simulation.workloads import traces
from jupyter_gpushare.simulation.workloads.workload import Cell, DeviceModel, Participant, Workload
from jupyter_gpushare.wire.client import Client

WORK, QUANTUM = 3.0, 0.5  # real seconds of each client's GPU work, and of a turn
PIECE = 1 << 21
LINK = 25e9 / memory_holders.TIME_FACTOR  # bytes per real second, of the simulated card


def live(size: int) -> tuple[float, float]:
    """Return the seconds of the work of one client with `size` bytes, and of two such clients in turns."""
    options = [f"--GpuShare.time_quantum={QUANTUM}", f"--GpuShare.pinned_memory={size >> 20}MiB"]
    seconds = WORK / memory_holders.TIME_FACTOR
    with (
        memory_holders.bench_host("sim", *options) as environment,
        memory_holders.two_holders(environment, size, PIECE, "--memory-mode", "swap") as programs,
    ):
        programs[0].run_command("job", seconds / 10, seconds / 30, 0)  # makes its memory resident
        exclusive = programs[0].run_command("job", seconds, seconds / 30, 0)
        ran = memory_holders.run_concurrently(programs, "job", seconds, seconds / 30, 0)
    return memory_holders.elapsed_seconds([exclusive]), memory_holders.elapsed_seconds(ran)


def simulated(size: int, work: float) -> float:
    participants = tuple(Participant(name, (Cell(0.0, (0.0, work)),), size) for name in ("one", "other"))
    workload = Workload("two", (DeviceModel(memory_holders.SIMULATED_BYTES, LINK),), participants, overlap=True)
    simulation = Simulation(workload, Settings(policy="fcfs", sharing="exclusive", time_quantum=QUANTUM))
    simulation.run(100.0)
    assert simulation.results.work == pytest.approx(2 * work)
    return max(client.idle_since for client in simulation.all_clients)


@pytest.mark.exclusive
@pytest.mark.nightly
@pytest.mark.parametrize("part", [0.6, 0.4])
def test_live_and_simulated_times_agree(part: float) -> None:
    """The clients have 1.2 or 0.8 times the device's memory, so a handoff moves a fifth of the memory or none."""
    size = int(memory_holders.SIMULATED_BYTES * part) // PIECE * PIECE
    exclusive, in_turns = live(size)
    assert in_turns == pytest.approx(simulated(size, exclusive), rel=0.1)


def test_record_writes_a_trace_of_a_live_coordinator(tmp_path: Path) -> None:
    """The recording ends with the coordinator, so that the recording has all snapshots."""
    size = memory_holders.SIMULATED_BYTES // 4 // PIECE * PIECE
    with memory_holders.bench_host("sim") as environment:
        program = memory_holders.MemoryHolder(environment, "somebody")
        try:
            program.read_answer()
            program.run_command("hold", size, PIECE)
            created = time.monotonic()
            recording = record(environment, tmp_path / "trace")
            began = time.monotonic()
            with Client(environment["GPUSHARE_SOCKET"]) as client:
                snapshots = client.subscribe()
                next(snapshots)
                program.run_command("job", 1.0 / memory_holders.TIME_FACTOR, 0.1 / memory_holders.TIME_FACTOR, 0)
                while next(snapshots)["clients"][0]["gpu_busy_seconds"] < 0.9:
                    pass
        finally:
            program.close()
        closed = time.monotonic()
    status, errors = outcome(recording)
    assert status == 1 and "closed the connection" in errors and "of 1 clients" in errors
    trace = traces.read(str(tmp_path / "trace"))
    (participant,) = trace.participants
    assert size <= participant.memory <= 2 * size
    assert trace.devices[0].memory == memory_holders.SIMULATED_BYTES
    assert closed - began - 1.0 <= trace.seconds <= time.monotonic() - created
    (cell,) = participant.cells
    assert 0.9 <= sum(list(cell.phases)[1::2]) <= trace.seconds, "the work takes a second on an idle machine"


def test_seconds_of_a_recording_begin_with_its_first_snapshot(tmp_path: Path) -> None:
    with memory_holders.bench_host("sim") as environment:
        recording = record(environment, tmp_path / "trace", "--seconds", "0.001")
        status, errors = outcome(recording)
    assert status == 0 and "0 cells of 0 clients" in errors
    header = json.loads((tmp_path / "trace").read_text().splitlines()[0])
    assert header["seconds"] >= 0.001


def record(environment: dict[str, str], path: Path, *options: str) -> subprocess.Popen[str]:
    """Start a recording, and return the process once the recording has begun."""
    command = [sys.executable, "-m", "jupyter_gpushare", "record", str(path), *options]
    recording = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert recording.stderr and "recording" in recording.stderr.readline()
    return recording


def outcome(recording: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the status of a recording and the rest of its messages, at its end."""
    assert recording.stderr
    with recording:
        return recording.wait(60), recording.stderr.read()
