"""Tests of eviction on a user's request: memory leaves the device and comes back intact with the next turn."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import CoordinatorError

from .system_host import MIB, GpuProgram, SystemHost, wait_until

FILL = """
arrays = [cuda.alloc(16 << 20)[1] for _ in range(4)]
[check(cuda.launch('fill_f32', array, 7.0, 4 << 20)) for array in arrays]
check(cuda.cuCtxSynchronize())
"""
FIRST = """
def first(array):
    value = (c_char * 4).from_buffer(bytearray(4))
    check(cuda.cuMemcpyDtoH_v2(value, c_uint64(array), 4))
    return memoryview(value).cast("B").cast("f")[0]
"""


def filled(host: SystemHost, mode: str) -> GpuProgram:
    program = host.program("one", GPUSHARE_MEMORY_MODE=mode)
    program.run(FILL)
    program.run(FIRST)
    wait_until(lambda: host.clients()["one"]["resident"] == 64 * MIB)
    return program


def resident(host: SystemHost) -> int:
    return int(host.clients()["one"]["resident"])


@pytest.mark.parametrize("mode", ["unified", "swap"])
def test_memory_leaves_and_comes_back_with_the_next_turn(default_settings_host: SystemHost, mode: str) -> None:
    program = filled(default_settings_host, mode)
    assert default_settings_host.request(messages.Evict(client="one")) == {"evicting": True, "bytes": 64 * MIB}
    wait_until(lambda: resident(default_settings_host) == 0)
    assert default_settings_host.clients()["one"]["allocated"] == 64 * MIB
    wait_until(lambda: default_settings_host.phase("one") == "idle")
    assert default_settings_host.request(messages.Evict(client="one"))["evicting"] is False
    assert program.run("[first(array) for array in arrays]") == [7.0] * 4
    wait_until(lambda: resident(default_settings_host) == 64 * MIB)


def test_evict_of_plain_memory_is_refused_with_a_reason(default_settings_host: SystemHost) -> None:
    program = filled(default_settings_host, "plain")
    with pytest.raises(CoordinatorError, match="mode plain, which cannot leave the device"):
        default_settings_host.request(messages.Evict(client="one"))
    assert resident(default_settings_host) == 64 * MIB
    assert program.run("first(arrays[0])") == 7.0
