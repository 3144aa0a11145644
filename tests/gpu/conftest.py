"""Tests on a real card: `make test-gpu`. Each is skipped, and says so, where there is none.

Managed memory stays far below what the card has free: a cap of 4 GiB is oversubscribed, never the card.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client, ensure_coordinator

CAP = "4GiB"


def _devices() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return 0 if hasattr(driver, "simcuda_describe") else count.value


@pytest.fixture(autouse=True, scope="session")
def real_gpu() -> None:
    if not _devices():
        pytest.skip("no real GPU here")


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A coordinator of this test's own, with turns of one second on at most 4 GiB of the card."""
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "c.sock"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    argv = [sys.executable, "-m", "jupyter_gpushare", "coordinator", "--detach"]
    path = ensure_coordinator("", [*argv, "--time-quantum", "1", "--device-memory", CAP], wait=10)
    yield path
    with Client(path) as client:
        client.request(messages.Stop())
