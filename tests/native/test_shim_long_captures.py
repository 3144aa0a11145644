"""Tests of captures during which the turn ends, and the memory of the program leaves the device and comes back.

An eviction waits for a capture for 10 s, but not while another thread waits at the gate.
"""

from __future__ import annotations

import pytest

from ..support import tier
from .conftest import NativeHost
from .fake_coordinator import ScriptedCoordinator, wait_until
from .test_shim_capture import CAPTURE, END, GLOBAL, INSTANTIATE, RELAXED, SETUP, THREAD_LOCAL
from .test_shim_swap import EVERYTHING, MIB

SIZE = 8 * MIB
TOOLS = f"""
import os
SIZE = {SIZE}
data = os.urandom(SIZE)
source, target = [cuda.alloc(SIZE)[1] for _ in range(2)]
found = (ctypes.c_char * SIZE)()

def copy(begin, size):
    arguments = c_uint64(target + begin), c_uint64(source + begin), c_size_t(size)
    return cuda.cuMemcpyDtoDAsync_v2(*arguments, c_void_p(one))

def has(address, expected):
    assert cuda.cuMemcpyDtoH_v2(found, c_uint64(address), c_size_t(SIZE)) == 0
    return found.raw == expected

def work_in_other_thread():
    in_thread(lambda: codes.append((cuda.make_current(), cuda.spin(0, two))[1]))

codes = []
cuda.function("spin")  # before the capture
"""


@pytest.mark.parametrize("has_waiting_thread", [True, *tier.nightly([False])])  # without it, an eviction takes 10 s
@pytest.mark.parametrize("capture", [GLOBAL, THREAD_LOCAL, RELAXED], ids=["global", "thread-local", "relaxed"])
@pytest.mark.parametrize("mode", ["unified", "swap"])
def test_memory_leaves_and_comes_back_during_a_capture(
    machine: NativeHost, coordinator: ScriptedCoordinator, mode: str, capture: int, has_waiting_thread: bool
) -> None:
    """The graph copies all bytes, of which it captured one half before the eviction and the other half after it."""
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE=mode)
    report, control = process.page.report, process.page.control
    process.open(1)
    client.run(SETUP + TOOLS)
    assert client.run("cuda.cuMemcpyHtoD_v2(c_uint64(source), data, c_size_t(SIZE))") == 0
    assert client.run("cuda.cuMemsetD8_v2(c_uint64(target), 0, c_size_t(SIZE)), cuda.cuCtxSynchronize()") == [0, 0]
    assert client.run(CAPTURE.format(capture)) == 0
    assert client.run("copy(0, SIZE // 2)") == 0
    control.resident_target[0] = 0
    process.drain(1)
    if has_waiting_thread:
        client.run("work_in_other_thread()")
    wait_until(lambda: report.evicted_bytes >= 2 * SIZE and not report.resident, 60)
    control.resident_target[0] = EVERYTHING

    client.start(
        "copy(SIZE // 2, SIZE // 2)"
    )  # in mode swap the call waits for the turn, in which the memory is mapped
    process.open(2)
    assert client.result() == 0
    assert client.run(END) == 0
    assert client.run(INSTANTIATE) == 0
    assert client.run("has(target, bytes(SIZE)), has(source, data)") == [True, True]
    control.resident_target[0] = 0
    process.drain(2)
    wait_until(lambda: report.evicted_bytes >= 4 * SIZE and not report.resident)
    control.resident_target[0] = EVERYTHING
    launch = "cuda.cuGraphLaunch(graph_exec, c_void_p(one)), cuda.cuStreamSynchronize(c_void_p(one))"
    assert client.run_at_the_gate(process, 3, launch) == [0, 0]
    assert client.run("has(target, data), has(source, data), codes") == [True, True, [0] * has_waiting_thread]
