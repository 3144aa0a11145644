"""Double of the control daemon of CUDA's Multi-Process Service: its pipe directory with a socket and a PID file."""

from __future__ import annotations

import os
import socket
from pathlib import Path

PID_FILE = "nvidia-cuda-mps-control.pid"


class MpsDaemon:
    """Control daemon that listens, and answers no request. `pid` is in the PID file."""

    def __init__(self, directory: Path, pid: int = 0) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(str(directory / "control"))
        self.socket.listen()
        (directory / PID_FILE).write_text(f"{pid or os.getpid()}\n")

    def stop(self) -> None:
        """Stop in order: the PID file goes, and the socket stays."""
        self.crash()
        (self.directory / PID_FILE).unlink()

    def crash(self) -> None:
        self.socket.close()
