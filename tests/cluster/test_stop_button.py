"""Tests of the stop button of a page, for kernels on a node whose cells use the GPU or wait for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient

from ..support.polling import wait_until
from .conftest import KERNEL, WAIT, JupyterServer, write_kernelspec

STOPS = 5  # of each cell
SECONDS = 0.2  # from the button to the end of the cell
# A kernel that gets no signal at an interrupt request, as kernels of other languages.
WITHOUT_SIGNAL = (
    "from ipykernel import kernelapp, kernelbase; kernelbase.Kernel._send_interrupt_children = lambda self: None; "
    "kernelapp.launch_new_instance()"
)
SETUP = "from jupyter_gpushare.demo.gpu import Gpu; gpu = Gpu(); array = gpu.full(1024, 0.0)"
ENDLESS = "print('begun', flush=True); gpu.work(array, 600)"


@pytest.fixture(scope="module", autouse=True)
def kernelspecs(server: JupyterServer) -> None:
    """Add kernelspecs for each way to interrupt a kernel."""
    write_kernelspec(server.folder, "signal", node="n1")
    write_kernelspec(server.folder, "message", fields={"interrupt_mode": "message"}, node="n1")
    argv = ["python", "-c", WITHOUT_SIGNAL, *KERNEL[3:]]
    write_kernelspec(server.folder, "without-signal", argv, fields={"interrupt_mode": "message"}, node="n1")


class GpuNotebook:
    """Kernel on the node n1 that has used the device, with a client beside the server."""

    def __init__(self, server: JupyterServer, kernelspec: str) -> None:
        self._server = server
        self.kernel: str = server.request("POST", "kernels", {"name": kernelspec})["id"]
        self.client = BlockingKernelClient(connection_file=str(runtime(server) / f"kernel-{self.kernel}.json"))
        self.client.load_connection_file()
        self.client.hb_channel.time_to_dead = WAIT
        self.client.start_channels()
        self.client.wait_for_ready(WAIT)
        assert self.run(SETUP)["status"] == "ok"

    def run(self, code: str) -> dict[str, Any]:
        answer = self.client.execute_interactive(code, output_hook=lambda _: None, timeout=WAIT)
        return dict(answer["content"])

    def begin(self, code: str) -> str:
        """Begin a cell, and return its message once it has printed something."""
        cell = self.client.execute(code, stop_on_error=False)
        while self.client.get_iopub_msg(timeout=WAIT)["msg_type"] != "stream":
            pass
        return cell

    def phase(self) -> str:
        clients = self._server.request("GET", "gpushare/api/status?node=n1")["clients"]
        return next(str(one["phase"]) for one in clients if one["id"] == self.kernel)

    def stop(self, cell: str) -> tuple[dict[str, Any], float]:
        """Press the stop button, and return the reply of the cell and the seconds until then."""
        began = time.monotonic()
        self._server.request("POST", f"kernels/{self.kernel}/interrupt")
        while (reply := self.client.get_shell_msg(timeout=WAIT))["parent_header"]["msg_id"] != cell:
            pass
        return dict(reply["content"]), time.monotonic() - began

    def close(self) -> None:
        self.client.stop_channels()
        self._server.request("DELETE", f"kernels/{self.kernel}")


def runtime(server: JupyterServer) -> Path:
    return server.folder / "runtime"


@pytest.fixture
def other(server: JupyterServer) -> Iterator[GpuNotebook]:
    """Return a notebook for the same device, which ends no turn before its work ends."""
    made = GpuNotebook(server, "signal")
    settings = {"policy": "fcfs", "time_quantum": 3600, "sharing": "exclusive"}
    server.request("PATCH", "gpushare/api/config?node=n1", settings)
    yield made
    made.close()


@pytest.fixture
def notebook(server: JupyterServer, request: pytest.FixtureRequest) -> Iterator[GpuNotebook]:
    made = GpuNotebook(server, request.param)
    yield made
    made.close()


def stops_at_the_gate(notebook: GpuNotebook, other: GpuNotebook, stops: int = 1) -> list[float]:
    """Stop a cell that waits for a turn several times, and return the seconds of each stop."""
    busy = other.begin(ENDLESS)
    wait_until(lambda: other.phase() == "running")
    times = []
    for _ in range(stops):
        cell = notebook.begin(ENDLESS)
        wait_until(lambda: notebook.phase() == "waiting")
        reply, seconds = notebook.stop(cell)
        assert reply["status"] == "error"
        times.append(seconds)
    assert other.phase() == "running"
    assert other.stop(busy)[0]["ename"] == "KeyboardInterrupt"
    assert notebook.run("assert gpu.work(array, 0.02) == 1")["status"] == "ok"
    return times


@pytest.mark.parametrize("notebook", ["signal", "message", "without-signal"], indirect=True)
def test_the_stop_button_ends_a_cell_that_waits_for_a_turn(notebook: GpuNotebook, other: GpuNotebook) -> None:
    stops_at_the_gate(notebook, other)


@pytest.mark.nightly
@pytest.mark.exclusive
@pytest.mark.parametrize("notebook", ["signal", "message"], indirect=True)
def test_the_stop_button_ends_a_cell_soon(notebook: GpuNotebook, other: GpuNotebook) -> None:
    at_the_gate = stops_at_the_gate(notebook, other, STOPS)
    at_work = [notebook.stop(notebook.begin(ENDLESS))[1] for _ in range(STOPS)]
    assert max(map(statistics.median, (at_the_gate, at_work))) <= SECONDS, (at_the_gate, at_work)
