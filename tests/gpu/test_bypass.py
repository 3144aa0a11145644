"""Tests of ways around the gate: no work of a suspended client may finish, and the shim counts the launches."""

from __future__ import annotations

import time
from collections.abc import Callable

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import OUT

from ..support.polling import wait_until
from ..system.system_host import GpuProgram
from .card_host import WAIT, CardHost

MODE = "unified"
DRIVER_CODE = """
stream, graph, executable, target = c_void_p(cuda.stream(1)), c_void_p(), c_void_p(), hold(1 << 20, 0)
data = (c_char * 4096)()
check(cuda.cuStreamBeginCapture_v2(stream, 2))
check(cuda.launch("work_f32", target, 1024, 0, 0, stream=stream.value))
check(cuda.launch("work_f32", target, 1024, 0, 0, stream=stream.value))
check(cuda.cuStreamEndCapture(stream, byref(graph)))
check(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
operations = {
    "launch": lambda: cuda.launch("work_f32", target, 1024, 0, 0),
    "graph": lambda: cuda.cuGraphLaunch(executable, stream),
    "set": lambda: cuda.cuMemsetD8_v2(c_uint64(target), 0, c_size_t(4096)),
    "copy": lambda: cuda.cuMemcpyDtoH_v2(data, c_uint64(target), c_size_t(4096)),
}
def run(name):
    check(operations[name]())
    check(cuda.cuCtxSynchronize())
"""


def suspend(host: CardHost, program: GpuProgram, client: str) -> None:
    host.request(messages.Suspend(client=client))
    wait_until(lambda: host.page(program)["turn_phase"] == OUT, WAIT, what="the end of the turn of a suspended client")


def is_held(host: CardHost, program: GpuProgram, rival: GpuProgram, code: str) -> bool:
    """Return whether code waits at the gate while the client is suspended and the rival works. Then let it end."""
    suspend(host, program, "one")
    program.start(code)
    wait_until(lambda: host.is_at_gate(program) or program.has_answered, WAIT)
    done = host.page(rival)["launches"]
    wait_until(lambda: host.page(rival)["launches"] > done, WAIT, what="work of the rival")
    held = not program.has_answered
    host.request(messages.Resume(client="one"))
    program.result(WAIT)
    return held


def launches(host: CardHost, program: GpuProgram) -> int:
    """Return the launches of a program up to now, as soon as its agent has counted them."""
    since = time.monotonic_ns()
    wait_until(lambda: host.page(program)["sampled_ns"] > since, WAIT, what="a count of the agent")
    return int(host.page(program)["launches"])


def executed(host: CardHost, program: GpuProgram) -> int:
    """Return how many launches of a program the simulated device has executed."""
    return sum(execution.kind == "launch" for execution in host.executions(program)) if host.is_simulated else 0


def test_calls_of_the_driver(host: CardHost, record_property: Callable[[str, object], None]) -> None:
    host.begin(MODE)
    program = host.card_program("one", MODE)
    program.start(DRIVER_CODE)
    program.result(WAIT)
    rival = host.start_rival(MODE)
    names = ("launch", "graph", "set", "copy")
    assert [name for name in names if not is_held(host, program, rival, f"run({name!r})")] == []
    before = launches(host, program)
    executed_before = executed(host, program)
    program.start("[run('launch'), run('graph'), run('launch')]")
    program.result(WAIT)
    assert launches(host, program) == before + 4
    if host.is_simulated:
        assert executed(host, program) == executed_before + 4
    host.stop_rival(rival)
    record_property("held", ", ".join(names))


def test_libraries_of_pytorch(host: CardHost, record_property: Callable[[str, object], None]) -> None:
    """CUPTI counts the kernels of each library in the same operation."""
    host.begin(MODE)
    program = host.framework("one", "torch_libraries", MODE)
    missing = program.run("program.prepare()", WAIT)
    names = program.run("list(program.operations)")
    rival = host.start_rival(MODE)
    passed = [name for name in names if not is_held(host, program, rival, f"program.run({name!r})")]
    differences, total = {}, 0
    for name in names if program.run("program.has_cupti()", WAIT) else ():
        before = launches(host, program)
        expected = program.run(f"program.kernels({name!r})", WAIT)
        found = launches(host, program) - before
        total += expected
        if found != expected:
            differences[name] = f"{found} counted by the shim, {expected} by CUPTI"
    host.stop_rival(rival)
    record_property("held", ", ".join(name for name in names if name not in passed))
    record_property("missing", missing)
    record_property("counted_kernels", total or "CUPTI records no kernel here")
    assert (passed, differences) == ([], {})
