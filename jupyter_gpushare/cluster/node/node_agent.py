"""Node agent: the program that an engine runs on a node, and that serves one Jupyter server by its standard streams.

The first line of each side is a greeting, after which all lines are sealed. The agent ends with its standard input.
The kernels go on then, and the next node agent finds them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import os
import select
import signal
import stat
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TextIO
from weakref import WeakValueDictionary

import msgspec

from ...launch import kernel_env
from ...wire import address, client
from ...wire import messages as coordinator_messages
from ..channel.messages import (
    NO_COORDINATOR,
    SERVER_SILENCE_SECONDS,
    Answer,
    AnyRequest,
    AwaitMove,
    AwaitVariables,
    Coordinator,
    Ended,
    Forget,
    Move,
    NodeError,
    Output,
    PutVariables,
    Running,
    SetMove,
    Signal,
    Start,
    Started,
    TakeVariables,
    Wait,
)
from ..channel.sealed_channel import ChannelError, SealedChannel
from . import broken_start, kernel_moves
from .kernel_folder import KernelFolder, all_kernels, kernels_folder
from .kernel_start import send_signal, start_kernel

MAX_LINE_BYTES = 16 << 20
_decoder = msgspec.json.Decoder(AnyRequest)
_encoder = msgspec.json.Encoder()


class NodeAgent:
    """Server of the requests of one Jupyter server. `send` sends the text of an answer."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests that change the files of a kernel run one after another, in the order of their arrival.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def handle(self, text: bytes) -> None:
        """Begin to handle a request."""
        try:
            request = _decoder.decode(text)
        except msgspec.ValidationError as error:
            number = msgspec.json.decode(text).get("id", 0)
            self._answer(Answer(id=number, reason="bad_request", message=f"the node cannot read the request: {error}"))
            return
        self._begin(self._handle(request))

    def discard_broken_starts(self) -> None:
        """Begin to remove what starts of other node agents have left, which were killed."""
        self._begin(asyncio.to_thread(broken_start.discard_all))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Withdraw all requests, after the signals that have arrived."""
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _handle(self, request: AnyRequest) -> None:
        try:
            answer = Answer(id=request.id, result=await self._result(request))
        except (NodeError, client.CoordinatorError) as error:
            answer = Answer(id=request.id, reason=error.reason, message=str(error))
        except OSError as error:
            # The error of a write has no path, and the node agent writes files below this folder only.
            path = error.filename or (kernels_folder() if error.errno in (errno.ENOSPC, errno.EDQUOT) else "")
            message = f"the node failed: {error.strerror or error}" + (f" ({path})" if path else "")
            answer = Answer(id=request.id, reason="node_failed", message=message)
        except Exception as error:  # a server waits for the answer to each request
            traceback.print_exc()
            message = f"the node failed: {' '.join(f'{type(error).__name__}: {error}'.split())}"
            answer = Answer(id=request.id, reason="node_failed", message=message)
        self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        self._send(_encoder.encode(answer))

    async def _result(self, request: AnyRequest) -> Any:
        match request:
            case Start():
                async with self._locks.setdefault(request.kernel, asyncio.Lock()):
                    return await _start(request)
            case Forget() | PutVariables() | SetMove():
                async with self._locks.setdefault(request.kernel, asyncio.Lock()):
                    return await asyncio.to_thread(_CHANGES[type(request)], request)
            case Wait(kernel=kernel, start=start):
                return await wait_for_end(KernelFolder(kernel, start))
            case Signal(kernel=kernel, start=start, number=number):
                return send_signal(KernelFolder(kernel, start), number)
            case Output(kernel=kernel, max_bytes=max_bytes):
                return {"text": KernelFolder(kernel).output(max_bytes)}
            case Running():
                return list(_running())
            case AwaitMove(kernel=kernel):
                return await wait_for_move(KernelFolder(kernel))
            case TakeVariables():
                return await asyncio.to_thread(kernel_moves.take_variables, request)
            case AwaitVariables(kernel=kernel, move=move):
                return kernel_moves.loaded_variables(kernel, move)
            case Coordinator(message=message):
                return await _ask_coordinator(message)


async def _start(request: Start) -> Started:
    """Start a kernel, and end it again if the server has gone meanwhile, because the answer reaches no server."""
    starting = asyncio.ensure_future(asyncio.to_thread(start_kernel, request))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(NodeError, OSError):
            await starting
            folder = KernelFolder(request.kernel, request.start)
            send_signal(folder, signal.SIGKILL)
            await wait_for_end(folder)
            forget(Forget(kernel=request.kernel, start=request.start))
        raise


def _running() -> Iterable[Started]:
    for folder in all_kernels():
        with contextlib.suppress(NodeError):
            if folder.ended() is None:
                yield folder.started()


async def wait_for_end(folder: KernelFolder) -> Ended:
    """Adopt the kernel until it ends. The keeper ends after it has written the exit status."""
    folder.state()
    adoption = folder.adopt()
    try:
        while (ended := folder.ended()) is None:
            for pid in folder.processes():
                await _process_end(pid)
        return ended
    finally:
        os.close(adoption)


async def wait_for_move(folder: KernelFolder) -> Move | None:
    """Wait until the kernel asks for a move, or ends."""
    end = asyncio.create_task(wait_for_end(folder))
    try:
        return await kernel_moves.next_move(folder, end)
    finally:
        end.cancel()


async def _process_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def forget(request: Forget) -> None:
    """Remove the files of a kernel that has ended or has not started. Raise NodeError for a kernel that runs."""
    folder = KernelFolder(request.kernel, request.start)
    if not folder.exists():
        broken_start.discard(folder, request.start, request.unregister)
        return
    client = folder.state()["client"]
    if folder.ended() is None:
        raise NodeError(f"the kernel {request.kernel} still runs", "still_runs")
    if request.unregister and client:
        kernel_env.unregister_client(kernel_env.Identity(client, ""))
    folder.remove()


_CHANGES: dict[type, Callable[[Any], Any]] = {
    Forget: forget,
    PutVariables: kernel_moves.put_variables,
    SetMove: kernel_moves.set_move,
}


async def _ask_coordinator(message: dict[str, Any]) -> Any:
    """Send a message to the coordinator of the node. Raise NodeError, CoordinatorError."""
    try:
        request = msgspec.convert(message, coordinator_messages.Incoming)
    except msgspec.ValidationError as error:
        raise NodeError(f"the coordinator has no such request: {error}", "bad_request") from None
    try:
        connection = await client.AsyncClient.connect(address.socket_path())
    except client.NoCoordinator as error:
        raise NodeError(str(error), NO_COORDINATOR) from None
    try:
        return await connection.request(request)
    finally:
        await connection.close()


async def serve() -> int:
    """Serve the standard streams until the end of the input. Return the exit status.

    The standard input has to be a pipe or a socket.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    channel = SealedChannel(is_server=False)
    output = _take_standard_output()

    def send(text: bytes) -> None:
        _write(output, channel.seal(text))

    _write(output, channel.greeting())
    agent = NodeAgent(send)
    try:
        channel.accept(await _read_line(reader))
        agent.discard_broken_starts()
        while line := await _read_line(reader):
            if text := channel.open(line):
                agent.handle(text)
            else:
                send(b"")
    except ChannelError as error:
        return _refuse(str(error))
    finally:
        await agent.close()
    return 0


def _is_stream(file: TextIO | None) -> bool:
    """Return whether the file is a pipe or a socket; None: its descriptor is closed."""
    if file is None:
        return False
    mode = os.fstat(file.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _refuse(reason: str) -> int:
    print(f"jupyter gpushare agent: {reason}; Jupyter servers start this command", file=sys.stderr)
    return 2


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line, or an empty one at the end of the input or after a long silence of the server.

    Raise ChannelError for a line that is too long.
    """
    try:
        return await asyncio.wait_for(reader.readline(), SERVER_SILENCE_SECONDS)
    except asyncio.TimeoutError:
        return b""
    except ValueError:
        raise ChannelError(f"a line of the standard input has more than {MAX_LINE_BYTES >> 20} MiB") from None


def _take_standard_output() -> int:
    """Return a descriptor of the standard output, to which no other part of the process can print any more."""
    output = os.dup(1)
    os.dup2(2, 1)
    return output


def _write(output: int, line: bytes) -> None:
    """Write a line, also to a socket that does not block because it is the standard input as well."""
    while line:
        try:
            line = line[os.write(output, line) :]
        except BlockingIOError:
            select.select([], [output], [])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments, because the Jupyter server sends requests by the standard input."""


def main(args: argparse.Namespace) -> int:
    """Run the node agent until the end of its input. Return 2 for an input that is not that of a Jupyter server.

    The agent runs in the user's home directory, so that it keeps no other folder in use.
    """
    with contextlib.suppress(OSError, RuntimeError):  # a user without a home directory
        os.chdir(Path.home())
    if not _is_stream(sys.stdin):
        return _refuse("the standard input is neither a pipe nor a socket")
    if sys.stdout is None:
        return _refuse("the standard output is closed")
    try:
        return asyncio.run(serve())
    except (BrokenPipeError, KeyboardInterrupt):
        return 0
    except OSError as error:
        return _refuse(f"the standard output cannot be written: {error.strerror}")
