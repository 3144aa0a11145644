"""Tests of the stop button for a cell of PyTorch that waits for the GPU: only KeyboardInterrupt appears."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ..system.notebook_client import Notebook, kernel_starter
from ..system.system_host import GpuProgram, wait_until
from ..system.test_interrupts import is_at_gate
from .conftest import MODES, FrameworkHost, write_kernelspec

MAX_SECONDS = 10.0  # for an interrupt on a busy machine
SETUP = "import torch; there = torch.arange(1024).cuda(); torch.cuda.synchronize()"
CALLS = {
    "copy to the device": "other = torch.zeros(10).cuda()",
    "copy from the device": "there = there.cpu().cuda()",
    "launch": "other = there + 1",
    "gradient": "x = torch.ones(9, device='cuda', requires_grad=True); (x * x).sum().backward()",
    "library": "other = torch.empty(64, 64, device='cuda') @ torch.empty(64, 64, device='cuda')",
    "allocation": "other = torch.full((100 << 20,), 1, dtype=torch.uint8, device='cuda')",
    "graph": "graph.replay()",
}
CAPTURE = """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    there + 1
"""


def occupy_device(host: FrameworkHost) -> GpuProgram:
    """Start a client that has the device for a minute."""
    program = host.program("other")
    program.run("check(cuda.spin(60000))")
    wait_until(lambda: host.phase("other") == "running")
    return program


@pytest.fixture
def long_turns(host: FrameworkHost) -> FrameworkHost:
    """Return a host on which a program waits for the other client's turn, although their memory fits together."""
    host.kill_coordinator()
    host.start_coordinator("--sharing", "exclusive", "--time-quantum", "20")
    return host


@pytest.fixture
def start() -> Iterator[Callable[..., Notebook]]:
    with kernel_starter() as start_kernel:
        yield start_kernel


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES[1:])
def test_a_stopped_cell_shows_keyboard_interrupt_and_nothing_else(
    long_turns: FrameworkHost, start: Callable[..., Notebook], mode: str
) -> None:
    notebook = start(write_kernelspec(long_turns.folder / "share" / "kernels", mode), setup=False)
    notebook.run(SETUP, 100)
    notebook.run(CAPTURE)
    other = occupy_device(long_turns)
    for name, call in CALLS.items():
        reply = stop(notebook, call)
        assert (reply["status"], reply.get("ename")) == ("error", "KeyboardInterrupt"), (name, reply)
        text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(reply["traceback"]))
        assert "During handling" not in text and "direct cause" not in text, text
        assert notebook.run("print(1 + 1)") == "2\n"
    other.end()
    assert notebook.value("torch.equal(there.cpu(), torch.arange(1024))")
    for call in CALLS.values():
        notebook.run(call)


def stop(notebook: Notebook, code: str) -> dict[str, Any]:
    """Run a cell, interrupt the cell when it waits, and return the reply."""
    request = notebook.start(code)
    wait_until(lambda: is_at_gate(notebook.pid))
    notebook.interrupt()
    return notebook.finish(request, MAX_SECONDS)


@pytest.mark.parametrize("mode", MODES[1:])
def test_an_interrupted_program_goes_on(long_turns: FrameworkHost, mode: str) -> None:
    program = long_turns.torch("torch", mode)
    program.run(SETUP)
    other = occupy_device(long_turns)
    program.start("there.add_(1).cpu()")
    wait_until(lambda: is_at_gate(program.pid))
    program.send(signal.SIGINT)
    assert program.raw(MAX_SECONDS)["error"] == "KeyboardInterrupt"
    other.end()
    assert program.run("torch.equal(torch.arange(9).cuda().cpu(), torch.arange(9))")
