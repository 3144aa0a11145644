"""What a process with the shim is to the coordinator, in Python: sealed pages, lock files, a socket, a gate to watch.

As a class it obeys a test step by step. As a program it is a busy one: it stands at the gate whenever it is closed, and
prints when its turns began and ended (JSON lines, CLOCK_MONOTONIC seconds).
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_gpushare.coordinator import locks
from jupyter_gpushare.wire import address
from jupyter_gpushare.wire.page import layout

CLOSED, OPEN, CLOSING, STEP = 0, 1, 2, 3
SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
DEADLINE = 5.0
UUID = "GPU-00000000-fake"


def memory(struct: str, seals: int = SEALS, size: int | None = None, magic: int | None = None) -> int:
    """A memfd as the shim makes it, for `gpushare_page` or `gpushare_client`; other seals or sizes for bad ones."""
    ffi, constants = layout()
    size = constants["GPUSHARE_PAGE_BYTES"] if size is None else size
    descriptor = os.memfd_create(struct, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if size >= 16:
        with mmap.mmap(descriptor, size) as mapped:
            header = ffi.cast("uint32_t *", ffi.from_buffer(mapped))
            header[0] = constants["GPUSHARE_PAGE_MAGIC"] if magic is None else magic
            header[1] = constants["GPUSHARE_PAGE_VERSION"]
            header[2] = size
            header[3] = os.getpid()
            del header
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def lock_file(uuid: str) -> int:
    """An open file description of the device's lock file, made if need be."""
    address.lock_directory().parent.mkdir(parents=True, exist_ok=True)
    locks.make_file(uuid)
    return os.open(address.lock_directory() / f"{uuid}.lock", os.O_RDWR | os.O_CLOEXEC)


class Connection:
    """Lines and descriptors, as bytes."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE)
        self.socket.connect(path)
        self.received = bytearray()
        self.descriptors: list[int] = []
        self.doorbells = 0

    def send(self, message: dict[str, Any] | bytes, descriptors: list[int] | None = None) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        if descriptors is None:
            self.socket.sendall(line)
        else:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            self.socket.sendmsg([line], rights)

    def receive(self) -> dict[str, Any] | None:
        """The next message, doorbells aside; None at the end of the connection. Raises TimeoutError."""
        while True:
            line, newline, rest = self.received.partition(b"\n")
            if newline:
                self.received = rest
                if line:
                    return json.loads(line)
                self.doorbells += 1
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
        """Whether the other end closed; waits for it."""
        while self.receive() is not None:
            pass
        return True

    def close(self) -> None:
        self.socket.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


def refusal(connection: Connection) -> dict[str, Any]:
    """The error that it gets, after which the connection ends."""
    answer = connection.receive()
    assert answer and answer["type"] == "error", answer
    assert connection.ended()
    return answer


class FakeProcess:
    """One process of a client. It does nothing by itself."""

    def __init__(self, path: str, client: str, *devices: str, token: str = "secret", quota: str = "") -> None:
        self.path, self.client, self.token, self.quota_text = path, client, token, quota
        self.devices = devices or (UUID,)
        self.page_fd = memory("gpushare_page")
        self.client_fd = memory("gpushare_client")
        self.locks = [lock_file(uuid) for uuid in self.devices]
        self._map = mmap.mmap(self.page_fd, os.fstat(self.page_fd).st_size)
        ffi, _ = layout()
        self._buffer = ffi.from_buffer(self._map)
        self.page: Any = ffi.cast("struct gpushare_page *", self._buffer)
        self.orders: Any = self.page.orders
        self.report: Any = self.page.report
        self.connection: Connection | None = None

    def hello(self, **changes: Any) -> dict[str, Any]:
        state, epoch = self.gate
        return {
            "type": "hello",
            "wire": 1,
            "pid": os.getpid(),
            "client": self.client,
            "token": self.token,
            "quota": self.quota_text,
            "devices": [{"uuid": uuid, "name": "Fake GPU", "memory": 8 << 30} for uuid in self.devices],
            "simulated": True,
            "epoch": epoch,
            "running": state != CLOSED and self.report.drained_epoch != epoch,
            **changes,
        }

    def connect(self, **changes: Any) -> str:
        """Say hello and take what is answered; returns its type."""
        self.connection = Connection(self.path)
        self.connection.send(self.hello(**changes), [self.page_fd, self.client_fd, *self.locks])
        answer = self.connection.receive()
        assert answer is not None, "the coordinator closed the connection"
        assert answer["type"] in ("welcome", "join"), answer
        if answer["type"] == "join":
            for descriptor in (self.client_fd, *self.locks):
                os.close(descriptor)
            self.client_fd, *self.locks = self.connection.descriptors
            self.connection.descriptors.clear()
        return str(answer["type"])

    def say(self, kind: str, **fields: Any) -> None:
        assert self.connection
        self.connection.send({"type": kind, **fields})

    @property
    def gate(self) -> tuple[int, int]:
        """State and epoch."""
        word = self.orders.gate
        return word & 3, word >> 2

    def allocate(self, size: int) -> None:
        """Say in the page and in the slot of the client page that this process has allocated so many bytes."""
        self.report.allocated = self.report.resident = size
        os.pwrite(self.client_fd, size.to_bytes(8, "little"), self._slot(self.orders.slot))

    def slots(self, count: int) -> list[int]:
        """What the first processes of the client have allocated, as its page says."""
        return [int.from_bytes(os.pread(self.client_fd, 8, self._slot(number)), "little") for number in range(count)]

    def _slot(self, number: int) -> int:
        return int(layout()[0].offsetof("struct gpushare_client", "allocated")) + 8 * number

    def wants(self) -> None:
        self.say("wants")

    def drain(self) -> None:
        """Nothing is inside the gate and nothing is left on the device."""
        state, epoch = self.gate
        assert state == CLOSING
        self.report.drained_epoch = epoch
        self.say("drained", epoch=epoch)

    def drain_if_closing(self) -> None:
        """What the agent does; for tests that may meet more than one closing."""
        state, epoch = self.gate
        if state == CLOSING and self.report.drained_epoch != epoch:
            self.report.drained_epoch = epoch
            self.say("drained", epoch=epoch)

    def wait_gate(self, state: int, within: float = DEADLINE) -> float:
        """Wait until the gate is in that state; returns the time."""
        wait_for(lambda: self.gate[0] == state, within, lambda: f"gate of {self.client} is {self.gate}, not {state}")
        return time.monotonic()

    def run_turn(self) -> None:
        """Want the device, get it."""
        self.wants()
        self.wait_gate(OPEN)

    def disconnect(self) -> None:
        if self.connection:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        """What the kernel does at the end of a process."""
        self.disconnect()
        ffi, _ = layout()
        self.page = self.orders = self.report = None
        ffi.release(self._buffer)
        self._map.close()
        for descriptor in (self.page_fd, self.client_fd, *self.locks):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def locked(uuid: str = UUID) -> bool:
    """Whether somebody holds the device's lock."""
    descriptor = lock_file(uuid)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait_for(condition: Callable[[], Any], within: float = DEADLINE, explain: Callable[[], str] = str) -> Any:
    """Poll until `condition` is true; returns what it returned."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, explain() or "it did not come to be in time"
        time.sleep(0.001)
    return found


@contextlib.contextmanager
def outsider(uuid: str = UUID) -> Iterator[None]:
    """Another user's coordinator holds the device."""
    descriptor = lock_file(uuid)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        os.close(descriptor)


def _report(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


def busy(path: str, client: str, uuid: str) -> None:
    """Run whenever the gate is open, until killed; look for another coordinator when this one ends."""
    process = FakeProcess(path, client, uuid)
    running = waiting = False
    _report("ready", pid=os.getpid())
    while True:
        if process.connection is None:
            try:
                process.connect()
                waiting = False
            except (OSError, AssertionError):
                process.connection = None
                time.sleep(0.02)
                continue
        state, epoch = process.gate
        try:
            if state == OPEN and not running:
                running, waiting = True, False
                _report("begin", epoch=epoch)
            elif state == CLOSING and process.report.drained_epoch != epoch:
                if running:
                    _report("end", epoch=epoch)
                running = waiting = False  # also where its turn was over before it was seen here
                process.drain()
            elif state != OPEN and not waiting:
                waiting = True
                process.wants()
            if select.select([process.connection.socket], [], [], 0.001)[0] and not process.connection.socket.recv(
                4096
            ):
                process.disconnect()
        except OSError:
            process.disconnect()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: not outlive a test that failed
    busy(*sys.argv[1:4])
