"""Test of graphs that are replayed while their memory leaves the device and comes back, as a rival takes turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .card_host import IS_GPU, MODES, WAIT, WORKING_SET, CardHost

REPLAYS = 10 if IS_GPU else 2
GRAPH_CODE = """
stream, graph, executable = c_void_p(cuda.stream(1)), c_void_p(), c_void_p()
def capture(address, size):
    check(cuda.cuStreamBeginCapture_v2(stream, 2))
    check(cuda.launch("work_f32", address, 1024, 0, 0, stream=stream.value))
    check(cuda.launch("work_f32", address + size - 4096, 1024, 0, 0, stream=stream.value))
    check(cuda.cuStreamEndCapture(stream, byref(graph)))
    check(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
def replay():
    check(cuda.cuGraphLaunch(executable, stream))
    check(cuda.cuStreamSynchronize(stream))
def numbers(address, size):
    data, found = (c_char * 4096)(), []
    for at in (0, size - 4096):
        check(cuda.cuMemcpyDtoH_v2(data, c_uint64(address + at), c_size_t(4096)))
        found += memoryview(bytes(data.raw)).cast("f")
    return sorted(set(found))
"""


@pytest.mark.parametrize("mode", MODES)
def test_replays_over_evictions(host: CardHost, mode: str, record_property: Callable[[str, object], None]) -> None:
    """Each replay adds 1 to the first and the last numbers of memory that leaves between two replays."""
    host.begin(mode)
    program = host.card_program("one", mode)
    rival = host.start_rival(mode, is_short=True)
    program.run(GRAPH_CODE)
    program.start(f"array = hold({WORKING_SET}, 0); capture(array, {WORKING_SET})")
    program.result(WAIT)
    for _ in range(REPLAYS):
        host.wait_for_eviction("one")
        program.start("replay()")
        program.result(WAIT)
    assert program.run(f"numbers(array, {WORKING_SET})", WAIT) == [float(REPLAYS)]
    evicted = host.moved_bytes("one")
    record_property("evicted_bytes", evicted)
    record_property("turns", host.turns("one"))
    assert evicted > 0
    host.stop_rival(rival)
