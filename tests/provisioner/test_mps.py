"""Tests of CUDA's Multi-Process Service: detection of a control daemon, and the environment of clients."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.launch import mps
from jupyter_gpushare.launch.mps import MpsRequest
from jupyter_gpushare.wire import messages

from ..support.mps_daemon import MpsDaemon

VARIABLES = (mps.PIPE_DIRECTORY, mps.ACTIVE_THREAD_PERCENTAGE)


@pytest.fixture
def daemon() -> Iterator[MpsDaemon]:
    """Start the double in a folder with a short path, because the path of a socket is short."""
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        running = MpsDaemon(Path(folder) / "pipe")
        yield running
        running.crash()


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def prepared(env: dict[str, str], *request: Any) -> dict[str, str]:
    mps.prepare_environment(env, MpsRequest(*request))
    return env


# --- detection


def test_a_running_daemon_is_found(daemon: MpsDaemon) -> None:
    env = {mps.PIPE_DIRECTORY: str(daemon.directory)}
    assert mps.find_daemon(env) == (str(daemon.directory), os.getpid())


def test_a_daemon_of_another_pid_namespace_is_found_by_its_socket(daemon: MpsDaemon) -> None:
    env = {mps.PIPE_DIRECTORY: str(daemon.directory)}
    (daemon.directory / "nvidia-cuda-mps-control.pid").write_text(str(ended_pid()))
    assert mps.find_daemon(env) == (str(daemon.directory), 0)
    daemon.crash()
    assert mps.find_daemon(env) is None


def test_a_daemon_that_has_stopped_leaves_its_socket(daemon: MpsDaemon) -> None:
    daemon.stop()
    assert (daemon.directory / "control").exists()
    assert mps.find_daemon({mps.PIPE_DIRECTORY: str(daemon.directory)}) is None


@pytest.mark.parametrize("content", ["", "x", "-1", "0", "9" * 40])
def test_an_unreadable_pid_file_without_a_socket_is_no_daemon(tmp_path: Path, content: str) -> None:
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text(content)
    assert mps.find_daemon({mps.PIPE_DIRECTORY: str(tmp_path)}) is None


def test_the_pipe_directory_is_nvidias_without_the_variable() -> None:
    assert mps.pipe_directory({}) == mps.pipe_directory({mps.PIPE_DIRECTORY: ""}) == Path("/tmp/nvidia-mps")


# --- the environment of a client


@pytest.mark.parametrize(
    ("sharing", "share", "percentage"),
    [
        ("packed", 0.25, "25"),
        ("packed", 0.125, "12.5"),
        ("packed", 0.0, None),
        ("packed", 1.0, None),
        ("auto", 0.25, None),
        ("exclusive", 0.25, None),
    ],
)
def test_a_share_becomes_a_percentage_of_threads_where_clients_always_run_together(
    daemon: MpsDaemon, sharing: str, share: float, percentage: str | None
) -> None:
    env = prepared({mps.PIPE_DIRECTORY: str(daemon.directory)}, "auto", sharing, share)
    assert env[mps.PIPE_DIRECTORY] == str(daemon.directory)
    assert env.get(mps.ACTIVE_THREAD_PERCENTAGE) == percentage


def test_nothing_changes_without_a_daemon(daemon: MpsDaemon) -> None:
    daemon.stop()
    env = {mps.PIPE_DIRECTORY: str(daemon.directory)}
    assert prepared(dict(env), "auto", "packed", 0.25) == env


def test_the_users_percentage_remains(daemon: MpsDaemon) -> None:
    env = {mps.PIPE_DIRECTORY: str(daemon.directory), mps.ACTIVE_THREAD_PERCENTAGE: "80"}
    assert prepared(dict(env), "auto", "packed", 0.25) == env


@pytest.mark.parametrize("is_named", [False, True])
def test_off_keeps_a_program_from_every_daemon(daemon: MpsDaemon, is_named: bool) -> None:
    env = prepared({mps.PIPE_DIRECTORY: str(daemon.directory)} if is_named else {}, "off", "packed", 0.25)
    assert mps.find_daemon(env) is None and not Path(env[mps.PIPE_DIRECTORY]).exists()
    assert mps.ACTIVE_THREAD_PERCENTAGE not in env


def test_a_program_inside_a_client_gets_a_percentage_of_its_own(daemon: MpsDaemon) -> None:
    outer = prepared({mps.PIPE_DIRECTORY: str(daemon.directory)}, "auto", "packed", 0.25)
    assert prepared(dict(outer), "auto", "packed", 0.5)[mps.ACTIVE_THREAD_PERCENTAGE] == "50"
    assert mps.ACTIVE_THREAD_PERCENTAGE not in prepared(dict(outer), "auto", "packed", 0.0)
    assert mps.PIPE_DIRECTORY not in prepared(prepared({}, "off", "packed", 0.0), "auto", "exclusive", 0.0)


def test_a_kernel_gets_the_daemon_and_its_share(coordinator: Any, start: Any, jupyter: Any, daemon: MpsDaemon) -> None:
    coordinator.set(default_quota="share=0.25")
    environment = f"[__import__('os').environ.get(name) for name in {VARIABLES}]"
    env = {mps.PIPE_DIRECTORY: str(daemon.directory)}
    for sharing, percentage in (("auto", None), ("packed", "25")):
        coordinator.set(sharing=sharing)
        assert start(env=env).value(environment) == [str(daemon.directory), percentage]
    (device,) = coordinator.request(messages.Status())["devices"]
    coordinator.set(**{f"devices.{device['uuid']}.sharing": "exclusive"})
    assert start(env=env).value(environment) == [str(daemon.directory), None]
