"""Multi-Process Service (MPS) of CUDA: detection of its control daemon, and the environment of clients that use it.

The facts are those of NVIDIA's document "Multi-Process Service" (docs.nvidia.com/deploy/mps) and of the manual page
nvidia-cuda-mps-control(1). A CUDA program connects to the control daemon whose socket is in the pipe directory. A
program that cannot connect runs without MPS. The socket remains when the daemon stops, and its PID file does not.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
ACTIVE_THREAD_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
CHOSEN = "GPUSHARE_MPS"  # names of the variables above that are not the user's, joined by commas
DEFAULT_DIRECTORY = "/tmp/nvidia-mps"
NO_DIRECTORY = "/nonexistent/gpushare-no-mps"  # pipe directory of a program that is to run without MPS

_SOCKET, _PID_FILE = "control", "nvidia-cuda-mps-control.pid"


class ControlDaemon(NamedTuple):
    """Running control daemon: its pipe directory, and its process, 0 if that is in another PID namespace."""

    directory: str
    pid: int


def pipe_directory(env: Mapping[str, str]) -> Path:
    """Return the directory in which a CUDA program with this environment looks for the control daemon."""
    return Path(env.get(PIPE_DIRECTORY) or DEFAULT_DIRECTORY)


def find_daemon(env: Mapping[str, str]) -> ControlDaemon | None:
    """Return the control daemon that a CUDA program with this environment connects to; None: no daemon runs."""
    directory = pipe_directory(env)
    try:
        pid = int((directory / _PID_FILE).read_text("ascii").strip())
    except (OSError, ValueError):
        return None
    if pid > 0 and _is_alive(pid):
        return ControlDaemon(str(directory), pid)
    return ControlDaemon(str(directory), 0) if _is_listening(directory / _SOCKET) else None


class MpsRequest(NamedTuple):
    """The settings `mps` and `sharing` that hold for a client, and its guaranteed share, a fraction of a device."""

    mps: str
    sharing: str
    share: float


def prepare_environment(env: dict[str, str], request: MpsRequest) -> None:
    """Change the environment of a client's program by the request. The user's own variables remain, except for "off".

    The share becomes a percentage of the device's threads only under the setting sharing "packed". Under the other
    values a client also has turns of its own, in which the whole device works for it. The percentage is fixed from the
    start of the program to its end.
    """
    for name in filter(None, env.pop(CHOSEN, "").split(",")):
        env.pop(name, None)  # the choice for another client, such as the kernel in which the program starts
    if request.mps == "off":
        env |= {PIPE_DIRECTORY: NO_DIRECTORY, CHOSEN: PIPE_DIRECTORY}
        return
    variables: dict[str, str] = {}
    if request.sharing != "exclusive" and (daemon := find_daemon(env)):
        variables[PIPE_DIRECTORY] = daemon.directory
        if request.sharing == "packed" and 0 < request.share < 1:
            variables[ACTIVE_THREAD_PERCENTAGE] = f"{100 * request.share:g}"
    if chosen := {name: value for name, value in variables.items() if name not in env}:
        env |= {**chosen, CHOSEN: ",".join(chosen)}


def _is_alive(pid: int) -> bool:
    with suppress(PermissionError):  # the process belongs to another user
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True


def _is_listening(path: Path) -> bool:
    """Return whether a process listens at the socket. A connection without a request starts no MPS server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.setblocking(False)
            probe.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
