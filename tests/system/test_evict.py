"""Memory that its user moves off the device: it leaves, comes back with the next turn, and nothing of it is lost."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import CoordinatorError

from .host import MIB, Host, Program, eventually

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


def filled(host: Host, mode: str) -> Program:
    program = host.program("one", GPUSHARE_MEMORY_MODE=mode)
    program.run(FILL)
    program.run(FIRST)
    eventually(lambda: host.clients()["one"]["resident"] == 64 * MIB)
    return program


def resident(host: Host) -> int:
    return int(host.clients()["one"]["resident"])


@pytest.mark.parametrize("mode", ["unified", "swap"])
def test_memory_leaves_and_comes_back_with_the_next_turn(patient: Host, mode: str) -> None:
    program = filled(patient, mode)
    assert patient.ask(messages.Evict(client="one")) == {"evicting": True, "bytes": 64 * MIB}
    eventually(lambda: resident(patient) == 0)
    assert patient.clients()["one"]["allocated"] == 64 * MIB
    eventually(lambda: patient.phase("one") == "idle")
    assert patient.ask(messages.Evict(client="one"))["evicting"] is False
    assert program.run("[first(array) for array in arrays]") == [7.0] * 4
    eventually(lambda: resident(patient) == 64 * MIB)


def test_plain_memory_stays_and_says_why(patient: Host) -> None:
    program = filled(patient, "plain")
    with pytest.raises(CoordinatorError, match="mode plain, which cannot leave the device"):
        patient.ask(messages.Evict(client="one"))
    assert resident(patient) == 64 * MIB
    assert program.run("first(arrays[0])") == 7.0
