"""Tests of `jupyter gpushare bench`: arguments, progress, time limits, load, synthetic host, length of a handoff."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jupyter_gpushare.bench import load, oversubscription
from jupyter_gpushare.bench.handoff import handoffs
from jupyter_gpushare.bench.support import harness, progress
from jupyter_gpushare.bench.support.synthetic_host import SyntheticHost, serving
from jupyter_gpushare.cli import main
from jupyter_gpushare.launch.kernel_env import SIMULATED_DRIVER
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client

from ..support.command import run_command

bench = functools.partial(run_command, "bench", timeout=100)


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["gate", "--rounds", "-1"], "0 to 100000"),
        (["gate", "--threads", "0"], "1 to 64"),
        (["gate", "--threads", "two"], "1 to 64"),
        (["speed"], "handoff"),
    ],
)
def test_invalid_argument_is_refused_with_the_allowed_values(words: list[str], allowed: str) -> None:
    ran = bench(*words)
    assert ran.returncode == 2
    assert words[-1] in ran.stderr and allowed in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_missing_browser_is_named() -> None:
    ran = bench("panel", CHROMIUM="/nowhere/chromium")
    assert ran.returncode == 1
    assert "/nowhere/chromium was not found" in ran.stderr and "CHROMIUM=" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_unreadable_trace_is_named_with_its_variable(tmp_path: Path) -> None:
    ran = bench("placement", GPUSHARE_TRACES=str(tmp_path))
    assert ran.returncode == 1
    assert f"GPUSHARE_TRACES={tmp_path}: cannot read {tmp_path}/openb_" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_bench_progress_goes_to_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nightly tier runs the programs of this bench (`tests/gpu/test_benches.py`)."""
    monkeypatch.setattr(oversubscription, "_run", lambda device, run, mode, job: 1.0 + run.is_half_busy)
    assert main(["bench", "coexist", "--rounds", "1", "--json"]) == 0
    output = capsys.readouterr()
    figures = json.loads(output.out)
    assert (figures["q5_busy"], figures["q5_half"]) == (1.0, 1.0)
    assert output.err.startswith("1 of 4: one after the other, always busy\n")


def test_progress_counts_the_steps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MIN_REPORT_SECONDS", 0.0)
    assert list(progress.report_steps(("bare", "shared"), str.upper)) == ["bare", "shared"]
    assert capsys.readouterr() == ("", "1 of 2: BARE\n2 of 2: SHARED\n")


def test_calls_on_a_mapping_are_timed(tmp_path: Path) -> None:
    program = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.bench.support.memory_program"],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(SIMULATED_DRIVER.parent),
            "GPUSHARE_SIM_STATE": str(tmp_path / "device"),
        },
        input=f"mappings {4 << 20} 2\nmappings {4 << 20} 1\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert program.returncode == 0, program.stderr
    answers = [json.loads(line) for line in program.stdout.splitlines()[1:]]
    assert len(answers) == 2
    for seconds in answers:
        assert list(seconds) == ["create", "map", "access", "unmap", "release"]
        assert all(0 < value < 60 for value in seconds.values())


def started_program(code: str) -> subprocess.Popen[str]:
    return harness.start_program([sys.executable, "-c", code], dict(os.environ), shared=False)


def test_a_program_has_the_time_of_its_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "MAX_ADDITIONAL_SECONDS", 0.0)
    assert harness.read_result(started_program("print('{}')"), 60.0) == {}


def test_programs_that_do_not_end_in_time_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "MAX_ADDITIONAL_SECONDS", 0.1)
    programs = [started_program("import signal\nwhile True: signal.pause()") for _ in range(2)]
    with pytest.raises(RuntimeError, match=r"a measuring program did not end within 0\.2 s"):
        harness.read_results(programs, 0.1)
    assert [program.returncode for program in programs] == [-signal.SIGKILL] * 2


def test_load_of_five_seconds_reports_turns(tmp_path: Path) -> None:
    """The load has many notebooks, two devices and a coordinator with the default settings."""
    words = ("load", "--clients", "40", "--devices", "2", "--seconds", "5", "--json")
    ran = bench(*words, JUPYTER_CONFIG_PATH=str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)
    assert (figures["clients"], figures["devices"], figures["seconds"]) == (40, 2, 5)
    assert figures["turns"] > 1
    assert 0 <= figures["missed"] <= figures["deadlines"]
    assert 0 < figures["coordinator_cpu"] < 1.1
    assert figures["memory_end_mib"] > 10


def test_load_counts_no_turn_before_the_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SimpleNamespace(kill=lambda: None, wait=lambda: 0)
    turns = [["gpu", 0.0, start, start + 0.5, start + 0.6] for start in (1.0, 2.0, 3.0, 4.0)]
    monkeypatch.setattr(load, "_start_workers", lambda *_: [worker])
    monkeypatch.setattr(load, "_await_clients", lambda *_: None)
    monkeypatch.setattr(load, "_sample_coordinator", lambda *_: ([1], 0.0, 1.5))
    monkeypatch.setattr(load.harness, "read_result", lambda _: turns)
    figures = load.measure("sim", 1)
    assert (figures["turns"], figures["deadlines"]) == (3, 2)


def test_synthetic_host_snapshots_and_history_are_complete(tmp_path: Path) -> None:
    """Each snapshot differs from the snapshot before, and the history has each entry exactly once."""
    socket = str(tmp_path / "c.sock")
    with serving(socket, SyntheticHost(clients=50, devices=4)), Client(socket) as client, Client(socket) as subscriber:
        snapshots = subscriber.subscribe()
        received = [next(snapshots)]
        client.request(messages.Config(changes={"updates": 3}))
        received += [next(snapshots) for _ in range(3)]
        history = {"next": 0, "more": True}
        entries = []
        while history["more"]:
            history = client.request(messages.History(after=history["next"]))
            entries += history["entries"]
    assert all(len(one["clients"]) == 50 and len(one["devices"]) == 4 for one in received)
    assert all(a["devices"] != b["devices"] for a, b in itertools.pairwise(received))
    assert len(entries) == history["next"] > 1000
    assert [entry["at"] for entry in entries] == sorted(entry["at"] for entry in entries)
    for device in received[-1]["devices"]:
        running = device["grants"][0]["client"]
        assert [entry["what"] for entry in entries if entry["client"] == running][-1] == "running"


def test_handoff_lasts_from_last_launch_to_first_launch() -> None:
    first, second = [[0, 100], [150, 200], [700, 900]], [[300, 600]]
    assert handoffs([first, second]) == [100, 100]
