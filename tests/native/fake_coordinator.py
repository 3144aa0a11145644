"""Coordinator that a test scripts, on a real socket: it decides nothing by itself."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import FIRST_TURN, IN, MAY, OUT, ClientPage, Page, Permit, Turn

from ..support.polling import WAIT_SECONDS, wait_until


class ProcessConnection:
    """Connection of a process that has sent its hello, with the process's page and client page.

    `turn` is the turn number in the permits of the process. The processes of one client share the number.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(WAIT_SECONDS)
        data, descriptors, _, _ = socket.recv_fds(connection, messages.MAX_LINE, 80)
        self._data = data
        self.hello = self.next()
        self.page = Page(descriptors.pop(0))
        self.client_page = ClientPage(descriptors.pop(0))
        assert not descriptors
        self.turn = FIRST_TURN + 1000 + self.hello["pid"]
        self.page.control.heartbeat_ns = time.monotonic_ns() + 3_600_000_000_000

    def next(self, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        """Return the next message that is not a doorbell. Raise AssertionError if none comes in time."""
        self._receive_line(seconds)
        line, self._data = self._data.split(b"\n", 1)
        return json.loads(line) if line.strip(b"\0") else self.next(seconds)

    def _receive_line(self, seconds: float) -> None:
        self.connection.settimeout(seconds)
        while b"\n" not in self._data:
            try:
                more = self.connection.recv(65536)
            except TimeoutError:
                raise AssertionError(f"no message within {seconds} s") from None
            assert more, "the process closed its connection"
            self._data += more

    def expect(self, kind: str, seconds: float = WAIT_SECONDS, **fields: Any) -> dict[str, Any]:
        """Return the next message, which must be of this type and have these fields."""
        message = self.next(seconds)
        expected = {"type": kind} | fields
        assert {name: message.get(name) for name in expected} == expected
        return message

    def wait_for_doorbell(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait for a doorbell since the last call of this function. Raise AssertionError if none comes in time."""
        self.connection.settimeout(seconds)
        try:
            while messages.DOORBELL not in self._data:
                self._data += self.connection.recv(65536)
        except TimeoutError:
            raise AssertionError(f"no doorbell within {seconds} s") from None
        self._data = self._data.replace(messages.DOORBELL, b"")

    def doorbells(self) -> int:
        """Return the number of doorbells since the last call, once the agent has acted on all changes so far.

        The agent answers a request for details before it acts on the changes that it finds in the same round, so the
        second answer comes after their doorbells.
        """
        doorbells = 0
        for _ in range(2):
            self.page.control.inspect_seq += 1
            self.doorbell()
            while True:
                self._receive_line(WAIT_SECONDS)
                line, self._data = self._data.split(b"\n", 1)
                if line != messages.DOORBELL.strip(b"\n"):
                    break
                doorbells += 1
            message = json.loads(line)
            assert (message["type"], message["seq"]) == ("details", self.page.control.inspect_seq)
        return doorbells

    def is_silent(self, seconds: float = 0.1) -> bool:
        """Discard the doorbells so far, and return whether nothing comes for so many seconds."""
        self.doorbells()
        self.connection.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            return not self.connection.recv(65536)
        return True

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        line = json.dumps(message).encode() + b"\n"
        if descriptors:
            socket.send_fds(self.connection, [line], descriptors)
        else:
            self.connection.sendall(line)

    def welcome(self) -> ProcessConnection:
        self.send({"type": "welcome"})
        return self

    def join(self, first: ProcessConnection, slot: int) -> ProcessConnection:
        self.page.control.slot = slot
        self.turn = first.turn
        self.send({"type": "join"}, [first.client_page.descriptor])
        return self

    def permit(self, epoch: int, flags: int = 0, **fields: int) -> None:
        """Write a permit and ring. The permit covers all devices of the client, unless `fields` has `devices`."""
        devices = self.client_page.bits(device["uuid"] for device in self.hello["devices"])
        values = {"turn": self.turn, "devices": devices} | fields
        self.page.write_permit(Permit(epoch=epoch, flags=flags, **values))
        self.doorbell()

    def open(self, epoch: int, flags: int = 0, **fields: int) -> None:
        """Let the process enter a turn, which it does as soon as a thread waits."""
        self.permit(epoch, MAY | flags, **fields)

    def close_gate(self, epoch: int) -> None:
        """Withdraw the permit."""
        self.permit(epoch)

    def doorbell(self) -> None:
        self.connection.sendall(messages.DOORBELL)

    def drain(self, epoch: int, seconds: float = WAIT_SECONDS) -> None:
        """Withdraw the permit and wait until the process has left."""
        self.close_gate(epoch)
        self.wait_until_left(epoch, seconds)

    def wait_until_left(self, epoch: int, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the process has left the turn of that permit."""
        wait_until(lambda: self.phase == OUT and self.last_turn.epoch == epoch, seconds, f"the end of turn {epoch}")

    def wait_until_entered(self, epoch: int, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the process is in a turn by that permit."""
        wait_until(lambda: self.last_turn[4:6] == (epoch, IN), seconds, f"turn {epoch}")

    def stays_in(self, phase: int, seconds: float = 0.2) -> bool:
        """Wait until the process is in a phase, and return whether it stays there for so many seconds."""
        wait_until(lambda: self.phase == phase)
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.phase == phase:
            time.sleep(0.001)
        return self.phase == phase

    def wait_for_waiting_thread(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait until a thread waits for a turn."""
        wait_until(lambda: self.page.report.waiting > 0 and self.phase != IN, seconds, "a thread that waits")

    @property
    def last_turn(self) -> Turn:
        return wait_until(self.page.read_turn)  # type: ignore[no-any-return]

    @property
    def phase(self) -> int:
        return self.last_turn.phase

    def disconnect(self) -> None:
        """Close the connection and the descriptors of the pages, as the death of the coordinator does."""
        self.connection.close()
        self.page.close()
        self.client_page.close()


class ScriptedCoordinator:
    """Coordinator that listens at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[ProcessConnection] = []
        self._listener = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen(16)

    def accept(self, seconds: float = WAIT_SECONDS) -> ProcessConnection:
        """Return the connection of the next process that sends its hello."""
        process = ProcessConnection(self.accept_raw(seconds))
        self.processes.append(process)
        return process

    def accept_raw(self, seconds: float = WAIT_SECONDS) -> socket.socket:
        """Return the next connection, from which nothing has been read."""
        self._listener.settimeout(seconds)
        try:
            return self._listener.accept()[0]
        except TimeoutError:
            raise AssertionError(f"no process connected within {seconds} s") from None

    def has_connection(self) -> bool:
        """Return whether a connection waits to be accepted."""
        return bool(select.select([self._listener], [], [], 0)[0])

    def stop_listening(self) -> None:
        self._listener.close()

    def crash(self) -> None:
        """Close the socket and all connections, as a SIGKILL would."""
        self.stop_listening()
        for process in self.processes:
            if process.connection.fileno() >= 0:
                process.disconnect()
        self.processes.clear()


@contextlib.contextmanager
def scripted_coordinator(path: Path) -> Iterator[ScriptedCoordinator]:
    coordinator = ScriptedCoordinator(path)
    try:
        yield coordinator
    finally:
        coordinator.crash()
