"""Listener at a socket in place of the coordinator, with a test's replies."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

Answer = Callable[[dict[str, Any]], list[Any]]


def reply(request: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"type": "reply", "id": request["id"], "result": result}


class Listener:
    """Listener that answers each line with the results of `answer`: messages, bytes, or None to disconnect."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.answer: Answer = lambda request: [reply(request, {})]
        self.requests: list[dict[str, Any]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def converse(self, connection: socket.socket, lines: Any) -> None:
        """Serve one connection until it ends."""
        for line in lines:
            request = json.loads(line)
            self.requests.append(request)
            for answer in self.answer(request):
                if answer is None:
                    return
                connection.sendall(answer if isinstance(answer, bytes) else json.dumps(answer).encode() + b"\n")

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
            self.converse(connection, lines)
