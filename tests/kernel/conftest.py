"""The fixtures of tests/provisioner, and a recorder in the coordinator's place for what a kernel says."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import encode

from ..provisioner.conftest import coordinator, jupyter, no_coordinator, own_device, start, wait_until_fixture
from ..support.listener import Listener

__all__ = ["coordinator", "jupyter", "no_coordinator", "own_device", "start", "wait_until_fixture"]


class Recorder(Listener):
    """Takes down what attached kernels send, checked against the wire's definition."""

    def __init__(self, path: Path) -> None:
        self.attached: list[messages.Attach] = []
        self.cells: list[tuple[str, str]] = []  # (state, request), in order
        self.cell_ids: dict[str, str] = {}  # by request, of those that started
        self.ended = 0  # connections of kernels that have ended
        self._decoder = msgspec.json.Decoder(messages.Incoming)
        self._kernels: list[socket.socket] = []
        super().__init__(str(path))

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
        super().close()
        self.hang_up()

    def converse(self, connection: socket.socket, lines: Any) -> None:
        attached = False
        with contextlib.suppress(OSError):
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
                    result = {"client": "", "devices": [], "known": False, "config": {}}
                    connection.sendall(encode(messages.Reply(id=message.id, result=result)))
        self.ended += attached


@pytest.fixture
def recorder(own_host: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    path = own_host / "run" / "recorder.sock"
    path.unlink(missing_ok=True)
    monkeypatch.setenv("GPUSHARE_SOCKET", str(path))
    monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", '["false"]')
    recorder = Recorder(path)
    yield recorder
    recorder.close()
