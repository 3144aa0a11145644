"""Coordinators that are forked from a process with all of their modules imported.

A start then costs less processor time than a new interpreter, which must import the modules.
`tests/coordinator/test_lifecycle.py` starts coordinators by their command line, as users do.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

PR_SET_PDEATHSIG = 1
MAX_REQUEST = 1 << 17  # bytes
PACKAGES = ("jupyter_gpushare.coordinator", "jupyter_gpushare.core", "jupyter_gpushare.wire")


class Forked:
    """Forked process with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._read_status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the process has ended. Raises TimeoutExpired after `timeout` seconds."""
        status = self._read_status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("coordinator", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_status(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            text = self._status.recv(64)
            self._status.close()
            assert text, "the zygote has ended"
            self.returncode = int(text)
        return self.returncode


class Zygote:
    """Process that forks coordinators, and ends with its parent."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd="/")

    def start(
        self, options: Sequence[str], env: Mapping[str, str], output: IO[bytes] | int, errors: IO[bytes] | int
    ) -> Forked:
        """Fork a coordinator with command-line options, environment and outputs (files or descriptors)."""
        mine, theirs = socket.socketpair()
        request = json.dumps([list(options), dict(env)]).encode()
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            outputs = [one if isinstance(one, int) else one.fileno() for one in (output, errors)]
            socket.send_fds(self._socket, [request], [theirs.fileno(), folder, *outputs])
        finally:
            theirs.close()
            os.close(folder)
        return Forked(int(self._socket.recv(64)), mine)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(60)


@functools.cache
def zygote() -> Zygote:
    """Return the zygote of this process, which ends with this process."""
    found = Zygote()
    atexit.register(found.close)
    return found


def start_coordinator(
    options: Sequence[str], env: Mapping[str, str] | None = None, *, output: IO[bytes] | int, errors: IO[bytes] | int
) -> Forked:
    """Start a coordinator as `jupyter gpushare coordinator OPTIONS` does, in a session of its own."""
    return zygote().start(options, os.environ if env is None else env, output, errors)


def serve(requests: socket.socket) -> int:
    """Fork for each request and report each end; return the exit status, in forked processes too."""
    from jupyter_gpushare.cli import main

    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    gc.freeze()
    libc = ctypes.CDLL(None)
    running: dict[int, socket.socket] = {}
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready = select.select([requests, ended], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            while running:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                with running.pop(pid) as status, contextlib.suppress(OSError):
                    status.send(str(os.waitstatus_to_exitcode(wait_status)).encode())
        if requests not in ready:
            continue
        request, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST, 4)
        if not request:
            return 0
        status_fd, folder, output, errors = descriptors
        options, env = json.loads(request)
        status = socket.socket(fileno=status_fd)
        pid = os.fork()
        if pid:
            running[pid] = status
            for descriptor in (folder, output, errors):
                os.close(descriptor)
            requests.send(str(pid).encode())
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (*running.values(), status, requests):
            one.close()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # so that killing pytest ends its coordinators
        os.setsid()
        os.fchdir(folder)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        for descriptor in (ended, wake, folder, output, errors):
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(env)
        return main(["coordinator", *options])


if __name__ == "__main__":
    del sys.path[0]
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        status = serve(requests)
    sys.exit(status)
