"""Keeper of one kernel on a node: the parent of the kernel, which outlives the node agent and the engine.

    python -I -S keeper.py < SPECIFICATION

The specification is a line of JSON. The keeper leaves the session of its caller and starts the kernel. The keeper
prints a line of JSON, with the kernel's process id or the error, and waits for the end of the kernel. The keeper
imports the standard library only, so that it starts within some milliseconds.

A server adopts the kernel by a shared lock on the file `adoption`, which Linux releases when the node agent ends.
After the steps of `orphan.py`, the keeper ends a kernel that has not been adopted for `orphan_timeout` seconds. Until
its move is confirmed, a kernel that moves to this node ends within some minutes, because the old kernel still has the
variables.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

UNCONFIRMED = "unconfirmed"  # file of a kernel whose move has not been confirmed
UNCONFIRMED_SECONDS = 60.0
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL for an orphan
STEP_SECONDS = 60.0  # for one step before the end of an orphan
CHECKS = 10  # of the adoption, in one `orphan_timeout`
MAX_CHECK_SECONDS = 30.0
MAX_OUTPUT_BYTES = 16 << 20  # of what the kernel prints; past that the keeper keeps the last bytes only
KEPT_OUTPUT_BYTES = 64 << 10
KEEP_SIZE, PUNCH_HOLE = 1, 2  # modes of fallocate(2)


def start_ticks(pid: int) -> int:
    """Return the start time of a process, by which another process with the same id differs; 0: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESRCH):
            raise
        return 0


def write_file(path: str, content: dict[str, Any]) -> None:
    """Write a file that appears at once with its whole content."""
    with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.new", path)


def is_adopted(path: str) -> bool:
    """Return whether a server has adopted the kernel, which no server finds after its folder has been removed.

    A file that cannot be opened counts as adopted, because a shared file system may fail for a time.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    with open(descriptor, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def end(kernel: subprocess.Popen[bytes]) -> None:
    """End the processes of a kernel, and wait for the kernel."""
    os.killpg(kernel.pid, signal.SIGTERM)
    try:
        kernel.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(kernel.pid, signal.SIGKILL)
        kernel.wait()


def run_step(command: list[str], step: str, output: str) -> None:
    """Run a step before the end of an orphan, which must end nevertheless if the step fails."""
    output = output if os.path.exists(output) else os.devnull
    with contextlib.suppress(OSError, subprocess.TimeoutExpired), open(output, "ab") as file:
        if command:
            subprocess.run(
                [*command, step], stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=STEP_SECONDS, check=False
            )


def bound_output(path: str) -> None:
    """Trim a file of output that takes too much room, while the kernel appends to it. The file keeps its length."""
    status = os.stat(path)
    if status.st_blocks * 512 <= MAX_OUTPUT_BYTES:
        return
    import ctypes  # takes longer to import than a keeper takes to start

    length = ctypes.c_long(status.st_size - KEPT_OUTPUT_BYTES)
    with open(path, "r+b") as file:
        ctypes.CDLL(None).fallocate(file.fileno(), KEEP_SIZE | PUNCH_HOLE, ctypes.c_long(0), length)


def keep(kernel: subprocess.Popen[bytes], folder: str, orphan_timeout: float, before_end: list[str]) -> str:
    """Wait for the end of the kernel, and return the reason for which the keeper has ended it, or "".

    `before_end` is the command of the steps before the end of an orphan; empty: there are none.
    """
    interval = min(orphan_timeout / CHECKS or MAX_CHECK_SECONDS, MAX_CHECK_SECONDS)
    poll = select.poll()
    poll.register(os.pidfd_open(kernel.pid), select.POLLIN)
    adopted_at = time.monotonic()
    while not poll.poll(interval * 1000):
        with contextlib.suppress(OSError):  # the kernel goes on without its output file
            bound_output(f"{folder}/output")
        allowed = UNCONFIRMED_SECONDS if os.path.exists(f"{folder}/{UNCONFIRMED}") else orphan_timeout
        if not allowed or is_adopted(f"{folder}/adoption"):
            adopted_at = time.monotonic()
        elif time.monotonic() - adopted_at >= allowed:
            run_step(before_end, "evict", f"{folder}/output")
            if not is_adopted(f"{folder}/adoption"):
                run_step(before_end, "record", f"{folder}/output")
                end(kernel)
                return "orphan"
    kernel.wait()
    return ""


def start(specification: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the kernel in a session of its own. Raise OSError."""
    # A caller may ignore signals, as workers of Ray ignore SIGINT, and programs inherit that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    file = os.open(f"{specification['folder']}/output", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(file, "ab") as output:
        return subprocess.Popen(
            specification["argv"],
            cwd=specification["working_directory"],
            env=specification["env"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def report(answer: dict[str, Any]) -> None:
    """Print the only line, and leave the pipes of the caller, which may have been killed meanwhile."""
    with contextlib.suppress(OSError):
        print(json.dumps(answer), flush=True)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)


def main() -> int:
    """Run the keeper. The process that the caller has started ends at once."""
    specification = json.loads(sys.stdin.readline())
    if os.fork():
        return 0
    os.setsid()
    folder = specification["folder"]
    try:
        kernel = start(specification)
    except OSError as error:
        report({"failed": "start", "errno": error.errno, "path": error.filename or specification["argv"][0]})
        return 1
    pids = {"pid": kernel.pid, "keeper": os.getpid()}
    try:
        ticks = {f"{name}_ticks": start_ticks(pid) for name, pid in pids.items()}
        write_file(f"{folder}/state", {**specification["shown"], **pids, **ticks})
    except OSError as error:  # without `state`, no node agent would find the kernel
        os.killpg(kernel.pid, signal.SIGKILL)
        kernel.wait()
        report({"failed": "write", "errno": error.errno, "path": f"{folder}/state"})
        return 1
    os.close(specification["lock"])  # of the start, which `state` ends
    report(pids)
    os.chdir("/")
    # Another kernel of this id may get a new folder at the same path.
    folder = f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}"
    reason = keep(kernel, folder, specification["orphan_timeout"], specification["before_end"])
    with contextlib.suppress(OSError):
        os.unlink(f"{folder}/connection.json")  # has keys, and the folder waits for the server
    with contextlib.suppress(FileNotFoundError):
        write_file(f"{folder}/exit", {"status": kernel.returncode, "reason": reason})
    return 0


if __name__ == "__main__":
    sys.exit(main())
