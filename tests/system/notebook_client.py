"""Front end of real kernels for tests, with kernels started by KernelManager."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_client.manager import KernelManager

from .system_host import HERE, WAIT

SETUP = f"""
import sys, threading, time
sys.path.insert(0, {str(HERE)!r})
from gpu_program import *
cuda = Cuda()
def work(seconds, launch=0.005):
    for _ in range(max(1, round(seconds / launch))):
        check(cuda.spin(1000 * launch))
        check(cuda.cuCtxSynchronize())
work(0)
"""


class Notebook:
    """Running kernel with its front end. The id of its client is the kernel's id."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self._connect()
        self.text = ""  # output of the requests that `finish` has waited for
        self.errors = ""

    def _connect(self) -> None:
        self.front_end = self.manager.blocking_client()
        self.front_end.start_channels()
        self.front_end.wait_for_ready(timeout=WAIT)

    def restart(self) -> None:
        """Restart the kernel, with a new front end: the new kernel gets no cell that the old one has not received."""
        self.disconnect()
        self.manager.restart_kernel(now=True)
        self._connect()

    def disconnect(self) -> None:
        self.front_end.stop_channels()

    @property
    def client_id(self) -> str:
        return str(self.manager.kernel_id)

    @property
    def pid(self) -> int:
        assert self.manager.provisioner is not None
        return int(self.manager.provisioner.pid)

    def start(self, code: str) -> str:
        """Send a cell; `finish` waits for it."""
        return str(self.front_end.execute(code))

    def finish(self, request: str, seconds: float = WAIT) -> dict[str, Any]:
        """Wait for the end of a request, and return its reply."""
        deadline = time.monotonic() + seconds
        while True:
            reply = self.front_end.get_shell_msg(timeout=deadline - time.monotonic())
            if reply["parent_header"].get("msg_id") == request:
                self._collect_output(request, deadline)
                return dict(reply["content"])

    def run(self, code: str, seconds: float = WAIT) -> str:
        """Run a cell, which must succeed, and return its printed and displayed text."""
        self.text = self.errors = ""
        reply = self.finish(self.start(code), seconds)
        assert reply["status"] == "ok", reply
        return self.text

    def value(self, expression: str) -> Any:
        return json.loads(self.run(f"import json as _json; print(_json.dumps({expression}))"))

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def _collect_output(self, request: str, deadline: float) -> None:
        while True:
            message = self.front_end.get_iopub_msg(timeout=deadline - time.monotonic())
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return
            if message["msg_type"] == "stream" and content["name"] == "stderr":
                self.errors += content["text"]
            elif message["msg_type"] == "stream":
                self.text += content["text"]
            elif message["msg_type"] in ("display_data", "execute_result"):
                self.text += content["data"]["text/plain"]


@contextlib.contextmanager
def kernel_starter() -> Iterator[Callable[..., Notebook]]:
    """Return a context manager whose value starts kernels on the host of this process.

    The kernels end with the context.
    """
    with contextlib.ExitStack() as stack:

        def start(name: str = "python3-gpushare", setup: bool = True, **options: Any) -> Notebook:
            manager = KernelManager(kernel_name=name)
            manager.start_kernel(**options)
            stack.callback(manager.shutdown_kernel, now=True)
            notebook = Notebook(manager)
            stack.callback(notebook.disconnect)
            if setup:
                notebook.run(SETUP)
            return notebook

        yield start
