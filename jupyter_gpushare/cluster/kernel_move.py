"""Move of a kernel with its variables to another node, as the server carries it out.

The old kernel has saved its variables and waits in its cell. The server copies the variables in small parts, and starts
a new kernel, which loads all of them. Until then every failure leaves the old kernel as it was: the server ends the
new one and sends the reason to the old one. Then the server locks the move, so that the old kernel cannot withdraw the
request, and saves the record of the new kernel. The record decides which kernel counts, for this server and the next
one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import enum
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import msgspec

from . import kernel_records
from .channel.messages import (
    UNREACHABLE,
    AwaitVariables,
    LoadedVariables,
    Move,
    NodeError,
    PutVariables,
    Request,
    SetMove,
    Start,
    Started,
    TakeVariables,
    Variables,
)
from .kernel_records import KernelRecord
from .remote_kernel import RemoteKernel

_REQUEST_SECONDS = 5.0
_LOADING_POLL_SECONDS = 0.2
_TURN_POLL_SECONDS = 0.2


class _State(enum.Enum):
    PREPARING = enum.auto()
    CANCELLED = enum.auto()  # by a restart or an end of the kernel
    REFUSED = enum.auto()
    SWITCHED = enum.auto()  # the record is that of the new kernel


class KernelMove:
    """Move of the kernel `old` to `new`, in a thread of its own.

    `request` returns the request to start the new kernel, and may raise NodeError. `record` returns the record of the
    new kernel. `is_ending` returns whether the old kernel ends or restarts. `switched` is called once the new kernel
    counts. The variables must arrive within `seconds`, and the new kernel must start and load them within as many
    seconds.
    """

    def __init__(
        self,
        move: Move,
        old: RemoteKernel,
        new: RemoteKernel,
        *,
        request: Callable[[], Start],
        record: Callable[[Start, Started], KernelRecord],
        is_ending: Callable[[], bool],
        switched: Callable[[], None],
        seconds: float,
        log: logging.Logger,
    ) -> None:
        self.id = move.id
        self.old, self.new = old, new
        self.record: KernelRecord | None = None  # of the new kernel, once it counts
        self._move = move
        self._request = request
        self._make_record = record
        self._is_ending = is_ending
        self._on_switched = switched
        self._seconds = seconds
        self._log = log
        self._state = _State.PREPARING
        self._lock = threading.Lock()  # held for the change of the state and of the record only
        self._cancelled: Future[None] = Future()
        self._has_files = False  # of the move, on the new node
        self._start: Future[Any] | None = None

    def begin(self) -> None:
        threading.Thread(target=self._run, name=f"gpushare-move-{self._move.node}", daemon=True).start()

    @property
    def is_under_way(self) -> bool:
        """Return whether the move is neither over nor refused."""
        return self._state in (_State.PREPARING, _State.SWITCHED)

    def cancel(self) -> bool:
        """Let the old kernel count for good, and return true, unless the new one counts already."""
        with self._lock:
            if self._state is _State.SWITCHED:
                return False
            if self._state is _State.PREPARING:
                self._state = _State.CANCELLED
                self._cancelled.set_result(None)
            return True

    def _run(self) -> None:
        try:
            self._prepare()
            self._switch()
        except Exception as error:  # NodeError, or of any part, because the old kernel waits for an answer
            if not isinstance(error, (NodeError, OSError)):
                self._log.exception("the move of kernel %s failed", self._move.id)
            self._refuse(str(error))
            return
        done = SetMove(kernel=self.old.kernel, move=self.id, state="done")
        with contextlib.suppress(NodeError):  # then the cell of the old kernel ends with the kernel
            self._result(self.old.request(done), _REQUEST_SECONDS, is_last=True)
        with contextlib.suppress(RuntimeError):  # the server has ended, and the next one adopts the new kernel
            self._on_switched()

    def _prepare(self) -> None:
        """Bring the variables to the node, start the new kernel, and wait until it has loaded all. Raise NodeError."""
        request = self._request()
        self._copy_variables(time.monotonic() + self._seconds)
        deadline = time.monotonic() + self._seconds
        self._start = self.new.request(request)
        started = msgspec.convert(self._result(self._start, self._seconds), Started)
        self._new_record = self._make_record(request, started)
        self.new.adopt()
        question = AwaitVariables(kernel=self.new.kernel, move=self.id)
        while not (answer := self._ask(self.new, question)):
            if time.monotonic() > deadline:
                raise NodeError(self._late("the kernel has not loaded the variables"), "timeout")
            self._pause(_LOADING_POLL_SECONDS)
        loaded = msgspec.convert(answer, LoadedVariables)
        if loaded.error:
            raise NodeError(f"the variables cannot be loaded: {loaded.error}", "load_failed")
        if loaded.failed:
            lost = "; ".join(f"{name} ({reason})" for name, reason in loaded.failed.items())
            raise NodeError(f"variables cannot be loaded there: {lost}", "load_failed")

    def _copy_variables(self, deadline: float) -> None:
        """Copy the variables, one part at a time, so that other requests go in between."""
        offset, size = 0, self._move.size
        while offset < size:
            part = min(self.old.part_bytes, self.new.part_bytes)
            take = TakeVariables(kernel=self.old.kernel, move=self.id, offset=offset, max_bytes=part)
            data = msgspec.convert(self._ask(self.old, take), Variables).data
            if not data:
                raise NodeError("the variables are incomplete", "incomplete")
            self._has_files = True
            put = PutVariables(kernel=self.new.kernel, move=self.id, offset=offset, data=data)
            with self._part_turn(deadline):
                self._ask(self.new, put, self._time_left(deadline))  # which may start a node agent
            offset += len(data)

    @contextlib.contextmanager
    def _part_turn(self, deadline: float) -> Iterator[None]:
        """Wait for a turn. Raise NodeError if the variables come too late."""
        turns = self.new.part_turns
        while not turns.acquire(timeout=_TURN_POLL_SECONDS):
            self._pause(0)
            self._time_left(deadline)
        try:
            yield
        except NodeError as error:
            raise (self._too_late() if error.reason == "timeout" else error) from None
        finally:
            turns.release()

    def _time_left(self, deadline: float) -> float:
        """Return the time for the variables to arrive. Raise NodeError if it is over."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._too_late()
        return left

    def _too_late(self) -> NodeError:
        return NodeError(self._late("the variables have not arrived"), "timeout")

    def _late(self, sentence: str) -> str:
        return f"{sentence} within {self._seconds:g} s (c.GpuShareCluster.start_timeout)"

    def _switch(self) -> None:
        """Let the new kernel count. Raise NodeError or OSError."""
        kernel = self.old.kernel
        self._ask(self.old, SetMove(kernel=kernel, move=self.id, state="locked"))
        self._ask(self.new, SetMove(kernel=kernel, move=self.id, state="confirmed"))
        with self._lock:
            if self._state is _State.CANCELLED or self._is_ending():
                raise _cancelled()
            kernel_records.save(self._new_record)
            self._state, self.record = _State.SWITCHED, self._new_record

    def _refuse(self, reason: str) -> None:
        """Remove the new kernel, and let the old one go on with its variables."""
        self._log.warning("kernel %s does not move to %s: %s", self.old.kernel, self._move.node, reason)
        self.new.abandon(reason)
        withdrawal = SetMove(kernel=self.new.kernel, move=self.id, state="withdrawn")
        if self._start is not None:
            self._start.add_done_callback(lambda _: self.new.request(withdrawal))
        elif self._has_files:
            self.new.request(withdrawal)
        with self._lock:
            if self._state is _State.CANCELLED:
                return
            self._state = _State.REFUSED
        self.old.refuse_move(self.id, f"{self._move.node}: {reason}")

    def _ask(self, kernel: RemoteKernel, request: Request, seconds: float = _REQUEST_SECONDS) -> Any:
        """Send a request that may be repeated, also by a new node agent. Raise NodeError, also for a cancelled move."""
        try:
            return self._result(kernel.request(request), seconds)
        except NodeError as error:
            if error.reason not in UNREACHABLE:
                raise
            return self._result(kernel.request(request), seconds)

    def _result(self, answer: Future[Any], seconds: float, is_last: bool = False) -> Any:
        """Return the result of a request. Raise NodeError, also for a cancelled move unless the request is the last."""
        futures = {answer} if is_last else {answer, self._cancelled}
        concurrent.futures.wait(futures, seconds, concurrent.futures.FIRST_COMPLETED)
        if not is_last and self._cancelled.done():
            raise _cancelled()
        if not answer.done():
            raise NodeError(f"no answer within {seconds:g} s", "timeout")
        return answer.result()

    def _pause(self, seconds: float) -> None:
        """Wait, unless the move is cancelled. Raise NodeError then."""
        concurrent.futures.wait({self._cancelled}, seconds)
        if self._cancelled.done():
            raise _cancelled()


def _cancelled() -> NodeError:
    return NodeError("the kernel restarts or ends", "cancelled")
