"""Fixtures of tests/provisioner, and a recorder of a kernel's messages in place of the coordinator."""

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
    """Recorder of the messages of attached kernels, which checks them against the protocol."""

    def __init__(self, path: Path) -> None:
        self.attached: list[messages.Attach] = []
        self.cells: list[tuple[str, str]] = []  # (state, request), in order
        self.cell_ids: dict[str, str] = {}  # by request that has started
        self.text_hashes: dict[str, str] = {}
        self.ended = 0  # connections of kernels that have ended
        self._decoder = msgspec.json.Decoder(messages.Incoming)
        self._kernels: list[socket.socket] = []
        super().__init__(str(path))

    @property
    def open(self) -> list[str]:
        """Requests that have started and not ended."""
        started = [request for state, request in self.cells if state == "start"]
        return [request for request in started if ("end", request) not in self.cells]

    def report_memory_shortage(self, is_short: bool) -> None:
        for connection in self._kernels:
            connection.sendall(encode(messages.MemoryShortage(is_short=is_short)))

    def disconnect(self) -> None:
        """End the connections of kernels, which may connect again."""
        self.cells.clear()
        for connection in self._kernels:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        self.disconnect()

    def converse(self, connection: socket.socket, lines: Any) -> None:
        is_attached = False
        with contextlib.suppress(OSError):
            for line in lines:
                message = self._decoder.decode(line)
                if isinstance(message, messages.Attach):
                    is_attached = True
                    self._kernels.append(connection)
                    self.attached.append(message)
                    connection.sendall(b'{"type":"welcome"}\n')
                elif isinstance(message, messages.Cell):
                    assert is_attached, "a cell message came before the attach message"
                    if message.state == "start":
                        self.cell_ids[message.request] = message.cell_id
                        self.text_hashes[message.request] = message.text_hash
                    self.cells.append((message.state, message.request))
                else:
                    result = {"client": "", "devices": [], "known": False, "config": {}}
                    connection.sendall(encode(messages.Reply(id=message.id, result=result)))
        self.ended += is_attached


@pytest.fixture
def recorder(own_host: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    path = own_host / "run" / "recorder.sock"
    path.unlink(missing_ok=True)
    monkeypatch.setenv("GPUSHARE_SOCKET", str(path))
    monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", '["false"]')
    recorder = Recorder(path)
    yield recorder
    recorder.close()
