"""Fixtures of all tests: the Jupyter fixtures and a host of their own."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import signal
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .support import build_wheel, exclusive, memory_cgroup, ports, sanitizers, tier

pytest_plugins = ["pytest_jupyter.jupyter_server"]


@pytest.fixture(scope="session", autouse=True)
def own_host() -> Iterator[Path]:
    """Give the tests a folder for sockets, logs and lock files, so that they do not touch files of the user.

    The path is short because a Unix socket's address has at most 107 bytes.
    At the end, the fixture ends coordinators that tests have left running.
    """
    root = Path(tempfile.mkdtemp(prefix="gpushare-test-"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GPUSHARE_") and "_TEST_" not in name]:
            patch.delenv(name)
        patch.setenv("XDG_RUNTIME_DIR", str(root / "run"))
        patch.setenv("XDG_STATE_HOME", str(root / "state"))
        patch.setenv("GPUSHARE_LOCK_DIR", str(root / "locks"))
        patch.setenv("GPUSHARE_SIM_STATE", str(root / "devices"))
        patch.setenv("JUPYTER_CONFIG_PATH", str(root / "config"))
        (root / "run").mkdir(mode=0o700)
        (root / "config").mkdir()
        yield root
        for path in root.rglob("*.sock"):
            _end_listener(path)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel.build_package("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def make_cgroup() -> Iterator[memory_cgroup.MakeCgroup]:
    """Provide a function that makes a real cgroup with a memory limit; the test is skipped where none can be made."""
    with memory_cgroup.cgroup_factory() as make:
        yield make


@pytest.fixture(autouse=True)
def no_sanitizer_reports() -> Iterator[None]:
    """Fail a test under a sanitizer if a program of the test was reported."""
    yield
    text = sanitizers.take_reports()
    assert not text, text


def _end_listener(path: Path) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", credentials)[0]
        if pid != os.getpid():
            os.kill(pid, signal.SIGTERM)


@functools.cache
def gpu_problem() -> str | None:
    """Return the reason why there is no usable GPU, or None if there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return None if status == 0 and count.value else f"no CUDA device (cuInit: {status})"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(exclusive)
    ports.WorkerPorts.instance()  # jupyter_client takes the ports of kernels there
    # A shell's background jobs ignore interrupts, and programs that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier.deselect(config, items)
