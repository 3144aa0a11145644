"""Python clients of the coordinator, blocking and asyncio, and the start of a coordinator if none is running."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from . import address, messages, program

_decoder = msgspec.json.Decoder(messages.Outgoing)
_encoder = msgspec.json.Encoder()
_ids = itertools.count(1)


class CoordinatorError(Exception):
    """Refusal of a request by the coordinator. `reason` is a stable word for programs; the message is for users."""

    def __init__(self, message: str, reason: str = "internal") -> None:
        super().__init__(message)
        self.reason = reason


class Unreachable(CoordinatorError):
    """Error of a request to a coordinator that is not running or does not answer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "unreachable")


class NoCoordinator(Unreachable):
    """Error of a request where no coordinator is there, in contrast to one that is busy or that hangs."""


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message as one line of the socket."""
    return _encoder.encode(message) + b"\n"


def _with_request_id(message: msgspec.Struct) -> tuple[int, bytes]:
    number = next(_ids)
    return number, encode(msgspec.structs.replace(message, id=number))


def _result(answer: messages.Reply | messages.Error) -> Any:
    if isinstance(answer, messages.Error):
        raise CoordinatorError(answer.message, answer.reason)
    return answer.result


class Client:
    """Blocking connection for a few requests."""

    def __init__(self, path: str = "", timeout: float = 5.0) -> None:
        """Connect to the coordinator at `path`, with `timeout` in seconds for each request. Raises Unreachable."""
        self.path = address.socket_path(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        try:
            self._socket.connect(self.path)
        except OSError as error:
            self._socket.close()
            raise Unreachable(f"no coordinator answers at {self.path}: {error.strerror or error}") from error
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def request(self, message: msgspec.Struct) -> Any:
        """Send a request of `wire.messages` and return its result. Raises Unreachable, CoordinatorError.

        A request without an answer in time closes the connection, which withdraws the request.
        """
        number, line = _with_request_id(message)
        try:
            self._socket.sendall(line)
            while True:
                answer = self._read()
                if isinstance(answer, (messages.Reply, messages.Error)) and answer.id in (number, 0):
                    return _result(answer)
        except OSError as error:
            self.close()
            raise Unreachable(f"the coordinator at {self.path} did not answer: {error}") from error
        except Unreachable:
            self.close()
            raise

    def subscribe(self) -> Any:
        """Yield snapshots, the present one at once. Raises Unreachable when the connection ends."""
        yield self.request(messages.Subscribe())
        self._socket.settimeout(None)
        while True:
            answer = self._read()
            if isinstance(answer, messages.Snapshot):
                yield answer.status

    def _read(self) -> Any:
        while True:
            try:
                line = self._lines.readline()
                if line.strip():
                    return _decoder.decode(line)
            except TimeoutError as error:
                timeout = self._socket.gettimeout() or 0.0
                raise Unreachable(f"the coordinator at {self.path} did not answer within {timeout:g} s") from error
            except (OSError, ValueError) as error:
                raise Unreachable(f"the connection to the coordinator at {self.path} broke: {error}") from error
            if not line:
                raise Unreachable(f"the coordinator at {self.path} closed the connection")


class AsyncClient:
    """Connection for many requests and one subscription, for use by one event loop."""

    def __init__(self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.path = path
        self._reader = reader
        self._writer = writer
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._snapshots: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
        self._disconnect_error: Unreachable | None = None
        self._task = asyncio.create_task(self._receive())

    @classmethod
    async def connect(cls, path: str = "", timeout: float = 5.0) -> AsyncClient:
        """Connect to the coordinator at `path`. Raises Unreachable, and NoCoordinator if none is there."""
        path = address.socket_path(path)
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(path, limit=16 << 20), timeout)
        except (OSError, asyncio.TimeoutError) as error:
            is_absent = isinstance(error, (FileNotFoundError, ConnectionRefusedError))
            kind = NoCoordinator if is_absent else Unreachable
            raise kind(f"no coordinator answers at {path}: {error}") from error
        return cls(path, reader, writer)

    async def request(self, message: msgspec.Struct, timeout: float = 10.0) -> Any:
        """Send a request of `wire.messages` and return its result. Raises Unreachable, CoordinatorError.

        A request without an answer within `timeout` seconds stays in force until `close` withdraws it.
        """
        if self._disconnect_error:
            raise self._disconnect_error
        number, line = _with_request_id(message)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(line)
            return _result(await asyncio.wait_for(future, timeout))
        except asyncio.TimeoutError:
            raise Unreachable(f"the coordinator at {self.path} did not answer within {timeout:g} s") from None
        finally:
            self._pending.pop(number, None)

    @property
    def is_disconnected(self) -> bool:
        """True if the connection has ended."""
        return self._disconnect_error is not None

    def send(self, message: msgspec.Struct) -> None:
        """Send a message that has no answer. Raises Unreachable if the connection has ended."""
        if self._disconnect_error:
            raise self._disconnect_error
        self._writer.write(encode(message))

    async def subscribe(self, timeout: float = 10.0) -> AsyncIterator[dict[str, Any]]:
        """Yield snapshots, the present one at once; a slow reader gets the newest only.

        Raises Unreachable at the end of the connection, and without a first snapshot within `timeout` seconds.
        """
        yield await self.request(messages.Subscribe(), timeout)
        while True:
            status = await self._snapshots.get()
            if status is None:
                raise self._disconnect_error or Unreachable(
                    f"the connection to the coordinator at {self.path} is closed"
                )
            yield status

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._fail_pending(Unreachable("the connection was closed"))
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _receive(self) -> None:
        try:
            while line := await self._reader.readline():
                if line.strip():
                    self._dispatch(_decoder.decode(line))
            self._fail_pending(Unreachable(f"the coordinator at {self.path} closed the connection"))
        except (OSError, ValueError) as error:
            self._fail_pending(Unreachable(f"the connection to the coordinator at {self.path} broke: {error}"))

    def _dispatch(self, message: Any) -> None:
        if isinstance(message, messages.Snapshot):
            self._put_snapshot(message.status)
        elif isinstance(message, (messages.Reply, messages.Error)):
            # An error without a number is about a line that the coordinator could not decode.
            futures = [self._pending.get(message.id)] if message.id else list(self._pending.values())
            for future in futures:
                if future and not future.done():
                    future.set_result(message)

    def _put_snapshot(self, status: Any) -> None:
        if self._snapshots.full():
            self._snapshots.get_nowait()
        self._snapshots.put_nowait(status)

    def _fail_pending(self, error: Unreachable) -> None:
        self._disconnect_error = self._disconnect_error or error
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._disconnect_error)
        self._put_snapshot(None)


def default_coordinator_argv(simulate: bool = False) -> list[str]:
    """Return the command that starts a detached coordinator for this user, or `$GPUSHARE_COORDINATOR_ARGV`."""
    given = os.environ.get("GPUSHARE_COORDINATOR_ARGV", "")
    if given:
        return [str(argument) for argument in json.loads(given)]
    argv = program.argv("jupyter_gpushare", "coordinator", "--detach")
    return [*argv, "--simulate"] if simulate else argv


def _command(path: str, argv: Sequence[str]) -> list[str]:
    return [*(argv or default_coordinator_argv()), "--socket", path]


def _start_failure(path: str, code: int | None, output: bytes) -> Unreachable:
    last = output.decode(errors="replace").strip().splitlines()[-1:] or ["it printed no message"]
    how = "did not start in time" if code is None else f"ended with status {code}"
    return Unreachable(f"no coordinator answers at {path}, and the one started there {how}: {last[0]}")


def ensure_coordinator(path: str = "", argv: Sequence[str] = (), wait: float = 20.0) -> str:
    """Return the socket of a running coordinator, and start a detached one if none is running.

    If two programs do this at the same time, the coordinator's own lock ends one of the two coordinators.
    Raises Unreachable after `wait` seconds.
    """
    path = address.socket_path(path)
    if address.is_accepting(path):
        return path
    deadline = time.monotonic() + wait
    code: int | None = None
    output = b""
    try:
        done = subprocess.run(
            _command(path, argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=wait,
            start_new_session=True,
        )
        code, output = done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        pass
    except OSError as error:
        raise Unreachable(f"no coordinator answers at {path}, and none can be started: {error}") from error
    while not address.is_accepting(path):
        if time.monotonic() > deadline or code:
            raise _start_failure(path, code, output)
        time.sleep(0.02)
    return path


async def ensure_coordinator_async(path: str = "", argv: Sequence[str] = (), wait: float = 20.0) -> str:
    """Do as `ensure_coordinator` without blocking the event loop; an attempt to connect takes 0.2 s at most."""
    path = address.socket_path(path)
    if address.is_accepting(path, timeout=0.2):
        return path
    return await asyncio.get_running_loop().run_in_executor(None, ensure_coordinator, path, argv, wait)
