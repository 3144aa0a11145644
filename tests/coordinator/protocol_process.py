"""Fake process with the compiled agent rule on real pages, lock files and sockets.

In a test, all such processes act while the test waits. As a program, this file is a busy process: a thread waits at the
gate whenever the gate is closed. The program prints the starts and ends of its turns as JSON lines, in seconds of
CLOCK_MONOTONIC.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from jupyter_gpushare.agent import link
from jupyter_gpushare.agent.lock_files import open_lock
from jupyter_gpushare.agent.process import Process
from jupyter_gpushare.agent.rule import CLOSED_GATE
from jupyter_gpushare.wire.page import CLOSING, CONTENDED, OUT, STEP

DEADLINE_SECONDS = 60.0
UUID = "GPU-00000000-fake"


class RawConnection:
    """Connection that sends and receives lines and descriptors."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.socket.connect(path)
        self.received = bytearray()
        self.descriptors: list[int] = []

    def send(self, message: dict[str, Any] | bytes, descriptors: list[int] | None = None) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        if descriptors is None:
            self.socket.sendall(line)
        else:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            self.socket.sendmsg([line], rights)

    def receive(self) -> dict[str, Any] | None:
        """Return the next message except doorbells, or None at the end of the connection. Raises TimeoutError."""
        while True:
            line, newline, rest = self.received.partition(b"\n")
            if newline:
                self.received = rest
                if line != link.DOORBELL[:-1]:
                    return json.loads(line)
                continue
            try:
                data, ancillary, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(66 * 4), socket.MSG_CMSG_CLOEXEC)
            except ConnectionResetError:
                return None
            for _, _, payload in ancillary:
                self.descriptors += array.array("i", payload)
            if not data:
                return None
            self.received += data

    def ended(self) -> bool:
        """Wait until the other end has closed, and return True."""
        while self.receive() is not None:
            pass
        return True

    def close(self) -> None:
        self.socket.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


def receive_refusal(connection: RawConnection) -> dict[str, Any]:
    """Return the error that arrives, and check that the connection ends after it."""
    answer = connection.receive()
    assert answer and answer["type"] == "error", answer
    assert connection.ended()
    return answer


class ProtocolProcess(Process):
    """Process of a client with one thread, whose submitted work runs until the test ends the work."""

    live: ClassVar[list[ProtocolProcess]] = []  # processes that act while a test waits

    def __init__(self, path: str, client: str, *devices: str, token: str = "secret", quota: str = "") -> None:
        super().__init__(client, devices or (UUID,), token=token, quota=quota)
        self.path, self.client = path, client
        self.is_working = False
        self.refusals: list[dict[str, Any]] = []
        self._changes: dict[str, Any] = {}
        self._may_connect = False
        self._through: RawConnection | None = None
        self.live.append(self)

    # --- methods for the edge

    def now(self) -> int:
        return time.monotonic_ns()

    def connect(self) -> link.Connection | None:
        if self._through:
            connection = link.SocketConnection.__new__(link.SocketConnection)
            connection.socket = self._through.socket
            connection.socket.setblocking(False)
            return connection
        return link.connect(self.path) if self._may_connect else None

    def hello(self, **changes: Any) -> dict[str, Any]:
        return {**super().hello(), **self._changes, **changes}

    def is_quiet(self) -> bool:
        return not self.is_working

    def wake_threads(self) -> None:
        if self.gate != CLOSED_GATE and self.waiting:
            self.waiting, self.is_working = 0, True
            self.submissions += 1

    def on_refused(self, message: dict[str, Any]) -> None:
        self.refusals.append(message)

    # --- methods for tests

    @property
    def control(self) -> Any:
        return self.page.control

    @property
    def report(self) -> Any:
        return self.page.report

    @property
    def contended(self) -> bool:
        """Return whether another client waits, by the permit."""
        return bool(self.permit.flags & CONTENDED)

    @property
    def connected(self) -> bool:
        return self.link.state == link.CONNECTED

    def send_hello(self, through: RawConnection | None = None, **changes: Any) -> str:
        """Send a hello over a given or a new connection, and return the type of the reply."""
        self._through = through
        before, self._changes, self._may_connect = self.client_page.inode, changes, True
        self.link.disconnect()
        self.link._connect_at = 0
        try:
            wait_until(lambda: self.connected or self.refusals, explain=lambda: f"{self} got no reply to its hello")
        finally:
            self._changes, self._may_connect, self._through = {}, False, None
        assert self.connected, self.refusals
        return "welcome" if self._next_client_page is None and self.client_page.inode == before else "join"

    def send_message(self, kind: str, **fields: Any) -> None:
        assert self.link.send({"type": kind, **fields}) == 1

    def disable_doorbell(self) -> None:
        """Suppress the doorbells to the coordinator."""
        self.link.ring = lambda: None  # type: ignore[method-assign]

    def allocate(self, size: int) -> None:
        """Report `size` allocated and resident bytes."""
        self.report.allocated = self.report.resident = size
        self.write_slot()

    def slots(self, count: int) -> list[int]:
        """Return the allocated bytes in the first slots of the client page."""
        return [self.client_page.slots[number].allocated for number in range(count)]

    def start_waiting(self) -> None:
        self.waiting = 1
        self.run_step()

    def stop_waiting(self) -> None:
        """Interrupt the waiting thread."""
        self.waiting = 0
        self.run_step()
        self.link.ring()

    def finish(self) -> None:
        """Finish the submitted work."""
        self.is_working = False
        self.run_step()

    def drain(self) -> None:
        """Finish the submitted work and so the turn, which is closing."""
        assert self.phase in (CLOSING, STEP), self.phase
        self.finish()
        assert self.phase == OUT, self.phase

    def end_turn(self) -> None:
        """Wait until the turn closes, and drain it."""
        self.wait_phase(CLOSING)
        self.drain()

    def wait_phase(self, phase: int, within: float = DEADLINE_SECONDS) -> float:
        """Wait until the process is in a phase, and return the time."""
        wait_until(lambda: self.phase == phase, within, lambda: f"{self} is in phase {self.phase}, not {phase}")
        return time.monotonic()

    def run_turn(self) -> None:
        """Wait at the gate until a turn begins."""
        self.start_waiting()
        wait_until(lambda: self.is_working, explain=lambda: f"{self} is in phase {self.phase}")

    def disconnect(self) -> None:
        self.link.disconnect()

    def close(self) -> None:
        if self in self.live:
            self.live.remove(self)
            super().close()


def is_locked(uuid: str = UUID) -> bool:
    """Return whether a process has locked the device."""
    descriptor = open_lock(uuid)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait_until(
    condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS, explain: Callable[[], str] = str, act: bool = True
) -> Any:
    """Poll until `condition` is true, and return its result. With `act`, all processes act meanwhile."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, explain() or "the condition did not become true in time"
        for process in list(ProtocolProcess.live) if act else ():
            process.run_step()
        time.sleep(0.001)
    return result


@contextlib.contextmanager
def lock_as_other_coordinator(uuid: str = UUID) -> Iterator[None]:
    """Lock the device as a client of another coordinator does."""
    descriptor = open_lock(uuid)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        os.close(descriptor)


class BusyProcess(ProtocolProcess):
    """Process that runs whenever a permit allows, and finishes its work as soon as its turn closes."""

    def __init__(self, path: str, client: str, uuid: str) -> None:
        super().__init__(path, client, uuid)
        self._may_connect = True
        self._report_event("ready", pid=os.getpid())

    def _report_event(self, event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)

    def is_quiet(self) -> bool:
        return True

    def wake_threads(self) -> None:
        """Do nothing, because the thread returns to the gate in each step."""

    def on_entered(self, turn: int) -> None:
        self._report_event("begin", turn=turn)

    def on_leaving(self, turn: int) -> None:
        self._report_event("end", turn=turn)

    def run(self) -> None:
        while True:
            self.waiting = 1
            self.submissions += 1
            self.run_step()
            connection = self.link.connection
            files = [connection.socket] if isinstance(connection, link.SocketConnection) else []
            select.select(files, [], [], min(0.001, max(0.0, (self.wake_at - self.now()) / 1e9)))


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: end with the test, even if the test fails
    BusyProcess(*sys.argv[1:4]).run()
