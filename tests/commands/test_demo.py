"""Tests of `jupyter gpushare demo`: a run with three notebooks, the overlap of their work, and the timeline."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.demo.demo_report import svg, timeline
from jupyter_gpushare.demo.phase_recorder import PhaseRecorder, intervals, overlap_seconds
from jupyter_gpushare.demo.slurm_cluster import NODES, missing_programs

from ..support.command import run_command
from ..support.polling import wait_until


def needs_slurm(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts two nodes of Slurm."""
    needed = pytest.mark.skipif(bool(missing_programs()), reason=f"needs {', '.join(missing_programs())}")
    for mark in (needed, pytest.mark.nightly, pytest.mark.timeout(320), pytest.mark.xdist_group("slurm")):
        test = mark(test)
    return test


@pytest.mark.nightly
@pytest.mark.timeout(170)
def test_three_notebooks_share_one_device(own_host: Path, tmp_path: Path) -> None:
    done = run_command("demo", "--output", str(tmp_path / "report"), timeout=160)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert set(report) == {"device", "simulated", "clients", "overlap_seconds", "wrong_results", "oversubscription"}
    assert report["simulated"] is True
    assert report["overlap_seconds"] == 0
    assert report["wrong_results"] == 0
    assert report["oversubscription"] > 1.5
    assert [client["label"] for client in report["clients"]] == ["train.ipynb", "explore.ipynb", "infer.ipynb"]
    for client in report["clients"]:
        assert set(client) == {"label", "cells", "gpu_seconds", "wait_seconds", "turn_count"}
        assert client["gpu_seconds"] > 1 and client["turn_count"] > 1
    assert "<svg" in (tmp_path / "report" / "report.html").read_text()
    assert "train.ipynb" in done.stdout and "█" in done.stdout and "cell 2 of 3 done" in done.stdout


@needs_slurm
def test_notebooks_on_two_nodes_outlive_the_daemons_of_slurm(own_host: Path, tmp_path: Path) -> None:
    done = run_command("demo", "--slurm", "--output", str(tmp_path), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report) == set(NODES)
    for result in report.values():
        assert result["simulated"] is True
        assert result["overlap_seconds"] == 0 and result["wrong_results"] == 0
        assert len(result["clients"]) == 2
    assert "kill -9 of slurmctld and of slurmd on both nodes" in done.stdout


@contextlib.contextmanager
def running_demo(output: Path, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a demo with a short folder of its own, because the folder has a socket. Kill the demo in the end."""
    argv = [sys.executable, "-m", "jupyter_gpushare", "demo", "--output", str(output), *options]
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        environment = {**os.environ, **variables, "TMPDIR": folder}
        with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
            try:
                yield demo, folder
            finally:
                demo.kill()


def first_setup(demo: subprocess.Popen[str]) -> str:
    """Return the first notebook that has done its first cell, or "" if the demo ends before."""
    assert demo.stdout
    line = next((line for line in demo.stdout if "cell 1 of" in line), "")
    return line.split()[2] if line else ""


@needs_slurm
@pytest.mark.parametrize("is_outage", [False, True], ids=["daemons", "outage"])
def test_a_signal_ends_the_processes_of_the_nodes(own_host: Path, tmp_path: Path, is_outage: bool) -> None:
    with running_demo(tmp_path, "--slurm") as (demo, folder):
        assert first_setup(demo)
        if is_outage:
            assert demo.stdout and any("kill -9" in line for line in demo.stdout)
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=120)
        assert demo.returncode == 128 + signal.SIGINT, errors
        assert "Traceback" not in errors
        wait_until(lambda: not processes_with(folder), 20)  # idle coordinators end later
        assert os.listdir(folder) == []


@needs_slurm
def test_daemons_that_do_not_start_again_end_the_demo_with_a_sentence(own_host: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "slurmctld"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nmkdir {tmp_path}/started && exec {shutil.which("slurmctld")} "$@"\n')
    program.chmod(0o755)
    variables = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    with running_demo(tmp_path / "report", "--slurm", **variables) as (demo, folder):
        _, errors = demo.communicate(timeout=300)
        assert demo.returncode == 1
        assert errors.splitlines()[-1].startswith("jupyter gpushare demo: the demo on Slurm has failed: "), errors
        assert "slurmctld" in errors and "Traceback" not in errors
        wait_until(lambda: not processes_with(folder), 20)
        assert os.listdir(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_demo_with_its_processes_and_its_folder(
    own_host: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with running_demo(tmp_path) as (demo, folder):
        assert first_setup(demo)
        assert processes_with(folder) > {demo.pid}
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=60)
        assert demo.returncode == 128 + number
        # A kernel may have written to the same stream before.
        assert errors.splitlines()[-1].endswith("interrupted; its kernels and its coordinator end"), errors
        assert "KeyboardInterrupt" not in errors
        wait_until(lambda: not processes_with(folder))
        assert os.listdir(folder) == []


def test_a_kernel_that_dies_ends_the_demo_with_a_sentence(own_host: Path, tmp_path: Path) -> None:
    """A kernel may also die at its start, if another process has taken its port."""
    with running_demo(tmp_path) as (demo, folder):
        if name := first_setup(demo):
            (kernel,) = processes_with(folder, f"JPY_SESSION_NAME={name}")
            os.kill(kernel, signal.SIGKILL)
        _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 1
    failures = [line for line in errors.splitlines() if " failed: " in line]
    assert failures and all("Kernel died" in line for line in failures), errors
    assert "jupyter_gpushare/demo" not in errors, "the demo has printed a traceback"


def processes_with(*texts: str) -> set[int]:
    """Return the processes whose environment has all the texts."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            if all(os.fsencode(text) in environment for text in texts):
                found.add(int(entry.name))
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--output", "/proc/x"), "the report cannot be written to /proc/x: No such file or directory"),
        (("--quantum", "0"), "'0' is not a number from 0.001 to 86400"),
    ],
)
def test_demo_refuses_unusable_options_before_it_starts(words: tuple[str, ...], error: str) -> None:
    done = run_command("demo", *words)
    assert done.returncode == 2
    assert error in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_slurm_demo_refuses_a_real_device() -> None:
    done = run_command("demo", "--slurm", "--device", "gpu")
    assert done.returncode == 2
    assert "--slurm has simulated devices and the shipped quantum only" in done.stderr


def test_slurm_demo_names_what_the_machine_lacks(tmp_path: Path) -> None:
    done = run_command("demo", "--slurm", PATH=str(tmp_path))
    assert done.returncode == 2
    assert "slurmctld" in done.stderr and "Debian's packages" in done.stderr


def test_overlap_counts_only_time_of_two_clients() -> None:
    second = 1_000_000_000
    apart = {"a": [(0, second), (2 * second, 3 * second)], "b": [(second, 2 * second)]}
    assert overlap_seconds(apart) == 0
    assert overlap_seconds({"a": [(0, 2 * second)], "b": [(second, 3 * second)]}) == 1
    assert overlap_seconds({"a": [(0, 2 * second), (second, 3 * second)]}) == 0


@pytest.mark.parametrize(
    ("allocated", "phases", "may_work"),
    [
        ((8, 4), ("running", "idle"), False),
        ((8, 8), ("draining", "running"), False),  # colocated so far
        ((8, 8), ("running", "waiting"), True),
    ],
)
def test_work_begins_when_all_memory_is_allocated_and_no_turn_is_shared(
    allocated: tuple[int, ...], phases: tuple[str, ...], may_work: bool
) -> None:
    recorder = PhaseRecorder(2, 8)
    clients = [
        {"label": str(at), "allocated": size, "phase": phase}
        for at, (size, phase) in enumerate(zip(allocated, phases, strict=True))
    ]
    recorder.on_snapshot({"devices": [], "clients": clients})
    assert recorder.have_all_allocated.is_set() == may_work


def test_timeline_shows_the_phases_of_each_client() -> None:
    recorder = PhaseRecorder(2, 0)
    recorder.lanes = {"a <b>": [(0.0, "idle"), (5.0, "running")], "c": [(0.0, "waiting"), (8.0, "gone")]}
    assert intervals(recorder.lanes["c"], 10.0) == [(0.0, 8.0, "waiting")]
    lines = timeline(recorder, 10.0, columns=10)
    assert lines[0] == "a <b> ·····█████"
    assert lines[1] == "    c ░░░░░░░░  "
    assert "a &lt;b&gt;" in svg(recorder, 10.0)


def test_the_timeline_of_a_short_run_begins_with_the_run() -> None:
    recorder = PhaseRecorder(2, 0)
    recorder.lanes = {"a": [(0.0, "idle"), (2.0, "running")]}
    assert timeline(recorder, 4.0, columns=8)[:2] == ["a ····████", "  0 s  4 s"]
