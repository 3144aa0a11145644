"""Busy programs and kernels, which the chaos tests kill and start again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from ..system.notebook_client import SETUP, Notebook
from ..system.system_host import SystemHost

BUSY_CELL = f"""{SETUP}
{{allocation}}
busy = Busy(cuda)
while not os.path.exists({{over!r}}):
    time.sleep(0.05)
result = busy.stop()
"""


class KillTarget:
    """Process of a client, which is killed and started again. `pids` has the pids of all its processes."""

    def __init__(self, host: SystemHost, client: str) -> None:
        self.host = host
        self.client = client
        self.pids: list[int] = []

    def begin(self) -> None:
        """Start the process and its work, which may begin after this returns."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the process by SIGKILL, even if it is stopped."""
        self.send(signal.SIGKILL)

    def finish(self) -> None:
        """End the work, and check its results."""
        raise NotImplementedError

    def send(self, number: int) -> None:
        os.kill(self.pids[-1], number)


class BusyProgram(KillTarget):
    """Program that works without pauses, with the fraction `part` of the device's memory."""

    def __init__(self, host: SystemHost, client: str, part: float) -> None:
        super().__init__(host, client)
        self._part = part

    def begin(self) -> None:
        self._program = self.host.program(self.client, cuda=False)
        self._program.start(f"cuda = Cuda(); {self.host.allocation(self._part)}")
        self._program.start_busy()
        self.pids.append(self._program.pid)

    def kill(self) -> None:
        super().kill()
        self._program.end()

    def finish(self) -> None:
        self._program.result()
        self._program.result()
        self._program.stop()
        self._program.end()


class BusyKernel(KillTarget):
    """Notebook with an endless cell and the fraction `part` of memory, whose kernel is restarted after each kill."""

    def __init__(self, host: SystemHost, start: Callable[..., Notebook], part: float) -> None:
        self._part = part
        self._notebook = start(setup=False)
        self._over = host.folder / "over"
        super().__init__(host, self._notebook.client_id)

    def begin(self) -> None:
        if self.pids:
            self._notebook.restart()
        self._request = self._notebook.start(
            BUSY_CELL.format(over=str(self._over), allocation=self.host.allocation(self._part))
        )
        self.pids.append(self._notebook.pid)

    def finish(self) -> None:
        self._over.touch()
        reply = self._notebook.finish(self._request)
        assert reply["status"] == "ok", reply
        result = self._notebook.value("result")
        assert (result["wrong"], result["failure"]) == (0, "")
        self._notebook.manager.shutdown_kernel(now=True)
