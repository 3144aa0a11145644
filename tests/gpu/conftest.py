"""Fixtures of the tests on a real card (`make test-gpu`), which are skipped without one.

Managed memory beyond the free memory of a card can hang the card.
Therefore a third of the free memory stays free, and tests oversubscribe a `device_memory` cap, never the card.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client, ensure_coordinator

GIB = 1 << 30
BUDGET_SECONDS = float(os.environ.get("GPUSHARE_TEST_GPU_SECONDS", "330"))  # programs that begin later are skipped
THROUGHPUT_LINES: list[str] = []
_BEGAN = time.monotonic()

_LOOK = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
count, context, free, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
real = not hasattr(driver, "simcuda_describe")
if real and not driver.cuInit(0) and not driver.cuDeviceGetCount(ctypes.byref(count)):
    if not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) and not driver.cuCtxSetCurrent(context):
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(count.value, free.value)
"""


@cache
def card_count_and_free_bytes() -> tuple[int, int]:
    """Return the number of real devices and the free bytes of the first, from a process that ends afterwards."""
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, timeout=60)
    count, free = (int(word) for word in done.stdout.split() or (0, 0))
    return (count, free) if free else (0, 0)


def device_memory() -> int:
    """Return the cap that tests oversubscribe: 16 GiB, or half of a small card.

    A quarter more than half of a card still fits into two thirds of it.
    """
    return min(16 * GIB, card_count_and_free_bytes()[1] // 2 // GIB * GIB)


@pytest.fixture(autouse=True)
def real_gpu(request: pytest.FixtureRequest) -> None:
    if not request.node.get_closest_marker("gpu"):
        return
    if not card_count_and_free_bytes()[0]:
        pytest.skip("needs a real GPU")
    if card_count_and_free_bytes()[1] < 8 * GIB:
        pytest.skip("needs 8 GiB of free memory on the GPU")


@contextmanager
def coordinator_of(folder: Path, *options: str) -> Iterator[str]:
    argv = [sys.executable, "-m", "jupyter_gpushare", "coordinator", "--detach", "--time-quantum", "1", *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUSHARE_SOCKET", str(folder / "c.sock"))
        patch.setenv("XDG_STATE_HOME", str(folder))
        path = ensure_coordinator("", argv, wait=10)
        yield path
        with Client(path) as client:
            client.request(messages.Stop())


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[str]:
    """Run a coordinator of the test's own, with turns of one second on at most `device_memory()` of the card."""
    with coordinator_of(tmp_path, "--device-memory", str(device_memory())) as path:
        yield path


def seconds_left() -> float:
    return BUDGET_SECONDS - (time.monotonic() - _BEGAN)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if THROUGHPUT_LINES:
        terminalreporter.section("throughput, as a fraction of that without sharing")
        for line in THROUGHPUT_LINES:
            terminalreporter.write_line(line)
