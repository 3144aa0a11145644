"""Files in a kernel's folder by which the kernel moves to another node with its variables.

| file | content |
| --- | --- |
| `variables-ID` | variables that the kernel has saved, or will load |
| `move-ID` | request of the kernel, which waits for the answer; the kernel removes the file to withdraw the request |
| `locked-ID` | the same file, renamed by the server, so that the kernel cannot withdraw the request any more |
| `answer-ID` | the server's answer |
| `loaded-ID` | report of the new kernel about the variables |
| `unconfirmed` | id of the move that has started the kernel; without a server the kernel ends soon |
| `confirmed` | the same file, renamed by the server when it has locked the move |
| `doorbell` | FIFO, to which the kernel writes when it has made a request |

`kernel/node_moves.py` is the kernel's side.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from contextlib import suppress
from glob import glob
from pathlib import Path

import msgspec

from ...launch import kernel_env
from ..channel.messages import LoadedVariables, Move, NodeError, PutVariables, SetMove, TakeVariables, Variables
from . import broken_start
from .keeper import UNCONFIRMED, write_file
from .kernel_folder import KernelFolder

_CONFIRMED = "confirmed"
_END_SECONDS, _END_POLL_SECONDS = 2.0, 0.02
_LOOK_SECONDS = 2.0  # between two looks for a request whose ring was lost
_IDS = re.compile(r"[0-9a-f]{16}")


def variables_file(folder: KernelFolder, move: str) -> Path:
    return _path(folder, "variables", move)


def prepare(folder: KernelFolder, move: str) -> None:
    """Remove the files of other moves from the folder of a kernel that is about to start, by this move or by none.

    A file that cannot be removed changes nothing for the kernel.
    """
    for path in folder.path.glob("*-*"):
        if not move or path != variables_file(folder, move):
            with suppress(OSError):
                path.unlink()
    for name in (UNCONFIRMED, _CONFIRMED):
        (folder.path / name).unlink(missing_ok=True)
    if move:
        (folder.path / UNCONFIRMED).write_text(move)


async def next_move(folder: KernelFolder, end: asyncio.Task[object]) -> Move | None:
    """Return the move that a kernel asks for, soon after the request, or None when `end` is done."""
    rung, doorbell = asyncio.Event(), -1

    def on_ring() -> None:
        with suppress(BlockingIOError):
            os.read(doorbell, 64)
        rung.set()

    loop = asyncio.get_running_loop()
    try:
        with suppress(OSError):  # without a FIFO, the request is found a little later
            with suppress(FileExistsError):
                os.mkfifo(folder.path / "doorbell", 0o600)
            # A descriptor that can write as well has no end of file when a kernel closes its own one.
            doorbell = os.open(folder.path / "doorbell", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            loop.add_reader(doorbell, on_ring)
        while not end.done():
            if (move := _find(folder)) is not None:
                return move
            ring = asyncio.ensure_future(rung.wait())
            await asyncio.wait({end, ring}, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            ring.cancel()
            rung.clear()
        return None
    finally:
        if doorbell >= 0:
            loop.remove_reader(doorbell)
            os.close(doorbell)


def _find(folder: KernelFolder) -> Move | None:
    paths = [*_each(folder, "locked"), *_each(folder, "move")]
    return next(filter(None, map(_read, paths)), None)


def _read(path: Path) -> Move | None:
    """Return the move of a file, or None if the kernel has withdrawn the move."""
    with suppress(FileNotFoundError, msgspec.MsgspecError):
        move = msgspec.json.decode(path.read_bytes(), type=Move)
        return msgspec.structs.replace(move, is_locked=path.name.startswith("locked"))
    return None


def take_variables(request: TakeVariables) -> Variables:
    """Return a part of the variables. Raise NodeError if the kernel has withdrawn the move."""
    folder = KernelFolder(request.kernel)
    if not _path(folder, "move", request.move).exists():
        raise _withdrawn()
    with variables_file(folder, request.move).open("rb") as file:
        file.seek(request.offset)
        return Variables(data=file.read(request.max_bytes))


def put_variables(request: PutVariables) -> None:
    """Save a part of the variables. Raise NodeError for a kernel that runs on this node, and after a missing part."""
    folder = KernelFolder(request.kernel)
    with suppress(FileNotFoundError):  # of an earlier move, whose server has ended
        withdraw(folder, (folder.path / UNCONFIRMED).read_text())
    if folder.exists() and folder.ended() is None:
        raise NodeError(f"the kernel {request.kernel} runs there already", "runs_already")
    if not request.offset:
        broken_start.discard(folder)
        folder.make()
    flags = os.O_WRONLY | os.O_CLOEXEC | (0 if request.offset else os.O_CREAT)
    try:
        descriptor = os.open(variables_file(folder, request.move), flags, 0o600)
    except FileNotFoundError:
        raise _incomplete() from None
    with open(descriptor, "wb") as file:
        if os.fstat(descriptor).st_size < request.offset:
            raise _incomplete()
        file.truncate(request.offset)  # because a part that is sent again may have been written before
        file.seek(request.offset)
        file.write(request.data)


def loaded_variables(kernel: str, move: str) -> LoadedVariables | None:
    """Return the report of a kernel about its variables, or None before that. Raise NodeError for an ended kernel."""
    folder = KernelFolder(kernel)
    with suppress(FileNotFoundError):
        return msgspec.json.decode(_path(folder, "loaded", move).read_bytes(), type=LoadedVariables)
    if (ended := folder.ended()) is not None:
        lines = folder.output(4096).strip().splitlines()[-1:] if (ended.status or 0) > 0 else []
        words = ": ".join([f"the kernel has ended with status {ended.status} while it loaded the variables", *lines])
        raise NodeError(words, "load_failed")
    return None


def set_move(request: SetMove) -> list[Move]:
    """Change the state of moves, and return those that have ended.

    Raise NodeError if the kernel has withdrawn the move that is to be locked.
    """
    folder = KernelFolder(request.kernel)
    ended: list[Move] = []
    if request.state == "confirmed":
        if not _has_started(folder, request.move) or folder.ended() is not None:
            raise NodeError("the kernel has ended before the move", "not_started")
        with suppress(FileNotFoundError):  # after a repeated request
            (folder.path / UNCONFIRMED).rename(folder.path / _CONFIRMED)
    elif request.state == "withdrawn":
        withdraw(folder, request.move)
    elif request.state == "locked":
        locked = _path(folder, "locked", request.move)
        try:
            _path(folder, "move", request.move).rename(locked)
        except FileNotFoundError:
            if not locked.exists():
                raise _withdrawn() from None
    else:
        for path in [*_each(folder, "move"), *_each(folder, "locked")]:
            move = path.name.partition("-")[2]
            if request.move in ("", move):
                if request.state == "refused":  # the answer may need the room
                    variables_file(folder, move).unlink(missing_ok=True)
                ended += filter(None, [_read(path)])  # before the answer, at which the kernel removes the file
                write_file(str(_path(folder, "answer", move)), {"state": request.state, "reason": request.reason})
                path.unlink(missing_ok=True)
    return ended


def withdraw(folder: KernelFolder, move: str) -> None:
    """End the kernel that this move has started on this node, and remove its client and its folder.

    Leave any other kernel alone.
    """
    if _has_started(folder, move):
        end = time.monotonic() + _END_SECONDS
        while folder.exists() and folder.ended() is None and time.monotonic() < end:
            for pid in folder.processes():
                if pid == folder.state()["pid"]:
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
            time.sleep(_END_POLL_SECONDS)
        with suppress(NodeError):
            if folder.exists() and (client := folder.state()["client"]):
                kernel_env.unregister_client(kernel_env.Identity(client, ""))
            broken_start.discard(folder)
        folder.remove()
    elif variables_file(folder, move).exists() and not (folder.exists() or folder.connection_file.exists()):
        folder.remove()  # of a kernel that has not begun to start


def _has_started(folder: KernelFolder, move: str) -> bool:
    """Return whether this move has started the kernel of the folder."""
    for name in (UNCONFIRMED, _CONFIRMED):
        with suppress(FileNotFoundError, NotADirectoryError):
            return (folder.path / name).read_text() == move
    return False


def _each(folder: KernelFolder, name: str) -> list[Path]:
    names = glob(f"{name}-*", root_dir=folder.path)  # none from a folder that is removed meanwhile
    return [folder.path / one for one in names if _IDS.fullmatch(one.partition("-")[2])]


def _withdrawn() -> NodeError:
    return NodeError("the kernel has withdrawn the move", "withdrawn")


def _incomplete() -> NodeError:
    return NodeError("the variables are incomplete, because an earlier part has been removed", "incomplete")


def _path(folder: KernelFolder, name: str, move: str) -> Path:
    if not _IDS.fullmatch(move):
        raise NodeError(f"{move!r} is no id of a move: allowed are 16 hexadecimal digits", "bad_move")
    return folder.path / f"{name}-{move}"
