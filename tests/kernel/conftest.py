"""The fixtures of tests/provisioner, and a recorder in the coordinator's place for what a kernel says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.wire import messages

from ..provisioner.conftest import coordinator, eventually_fixture, jupyter, no_coordinator, own_device, start

__all__ = ["coordinator", "eventually_fixture", "jupyter", "no_coordinator", "own_device", "start"]


class Recorder:
    """Takes down what attached kernels send, checked against the wire's definition."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.attached: list[messages.Attach] = []
        self.cells: list[tuple[str, str]] = []  # (state, request), in order
        self.cell_ids: dict[str, str] = {}  # by request, of those that started
        self.ended = 0  # connections of kernels that have ended
        self._decoder = msgspec.json.Decoder(messages.Incoming)
        self._kernels: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def open(self) -> list[str]:
        """Requests that started and have not ended."""
        started = [request for state, request in self.cells if state == "start"]
        return [request for request in started if ("end", request) not in self.cells]

    def hang_up(self) -> None:
        """End the connections of kernels; they may come back."""
        self.cells.clear()
        for connection in self._kernels:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        attached = False
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                message = self._decoder.decode(line)
                if isinstance(message, messages.Attach):
                    attached = True
                    self._kernels.append(connection)
                    self.attached.append(message)
                    connection.sendall(b'{"type":"welcome"}\n')
                elif isinstance(message, messages.Cell):
                    assert attached, "a cell before attach"
                    if message.state == "start":
                        self.cell_ids[message.request] = message.cell_id
                    self.cells.append((message.state, message.request))
                else:
                    self._answer(connection, message)
        self.ended += attached

    def _answer(self, connection: socket.socket, message: Any) -> None:
        result = {"client": "", "devices": [], "known": False, "config": {}}
        connection.sendall(msgspec.json.encode(messages.Reply(id=message.id, result=result)) + b"\n")


@pytest.fixture
def recorder(own_host: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    path = own_host / "run" / "recorder.sock"
    path.unlink(missing_ok=True)
    monkeypatch.setenv("GPUSHARE_SOCKET", str(path))
    monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", '["false"]')
    recorder = Recorder(path)
    yield recorder
    recorder.close()
