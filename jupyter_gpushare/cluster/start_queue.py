"""Queue of the starts of kernels that wait in this process for a node with room.

The starts keep their order: after a change on a node, each one tries in turn, the first one first. A start that needs
less may pass a start that needs more. Any thread may use the queue, because a blocking kernel manager runs each call of
a provisioner in another event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .. import units
from . import start_records
from .channel.messages import UNREACHABLE, NodeError
from .start_records import StartRecord

_LOOK_SECONDS = 1.0  # between two looks at the snapshots of the nodes
_RETRY_SECONDS = 10.0  # after which the starts try again without a change that the snapshots show
_SECOND_TRY_SECONDS = 2.5  # after a change, because the cluster daemon may have seen an older state at the first try
_INTERVALS = 8  # the last ones, from which the waits are estimated
_PASSING_REASONS = ("no_room", "timeout", *UNREACHABLE)  # of errors after which a start goes on waiting
_Result = TypeVar("_Result")
_Snapshot = Mapping[str, Any]
_Look = Callable[[Sequence[str]], Awaitable[Mapping[str, _Snapshot | None]]]  # returns the snapshots of nodes


@dataclass(eq=False)
class WaitingStart:
    """Start of a kernel that may go to the `nodes`; `session` is the notebook's path, or "" without one."""

    kernel: str
    label: str
    session: str
    nodes: Sequence[str]
    refusal: str = ""  # why no node has room
    since: float = field(default_factory=time.time)
    cancellation: str = ""  # the sentence with which the start fails
    is_trying: bool = False
    tried_round: int = -1
    first_look: int = 0  # number of the look before which the start tries nothing
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    wakened: asyncio.Event = field(default_factory=asyncio.Event)
    look: asyncio.Future[None] | None = None  # that this start has begun for all starts
    left: Future[None] = field(default_factory=Future)  # done when the start waits no more

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # its event loop has ended
            self.loop.call_soon_threadsafe(self.wakened.set)


class StartQueue:
    """Waiting starts of this process, the first one first. `on_change` is called after each change, in any thread."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._lock = threading.RLock()
        self._starts: list[WaitingStart] = []
        self._is_closed = False
        self._round = 0  # in each round every start tries once
        self._next_round_at = 0.0  # at the latest
        self._looks = 0
        self._looking: WaitingStart | None = None  # the start that gets the snapshots of the nodes now
        self._next_look_at = 0.0
        self._reported: list[StartRecord] = []
        self._seen: dict[str, Any] = {}  # by node: what of its snapshot concerns its room
        self._interval_began_at = 0.0  # at the last start that found room, or when the first start began to wait
        self._intervals: deque[float] = deque(maxlen=_INTERVALS)

    def open(self) -> None:
        self._is_closed = False

    def close(self) -> None:
        """Fail all waiting starts and those to come. A start that a node tries now goes on until the node's answer."""
        with self._lock:
            self._is_closed = True
            for start in self._starts:
                start.wake()

    def has_rivals(self, nodes: Sequence[str]) -> bool:
        """Return whether another start waits for one of these nodes."""
        with self._lock:
            return any(set(nodes) & set(start.nodes) for start in self._starts)

    def cancel(self, kernel: str, reason: str) -> bool:
        """Fail the waiting start of a kernel with this sentence. Return false if there is none."""
        with self._lock:
            found = [start for start in self._starts if start.kernel == kernel]
            for start in found:
                start.cancellation = reason
                start.wake()
        return bool(found)

    def replace(self, session: str, reason: str) -> None:
        """Fail the waiting starts of a notebook's path with this sentence, because a new start takes their place."""
        with self._lock:
            for kernel in [start.kernel for start in self._starts if session and start.session == session]:
                self.cancel(kernel, reason)

    def records(self) -> list[StartRecord]:
        """Return what people see of the waiting starts, in order."""
        with self._lock:
            return [
                StartRecord(
                    kernel=start.kernel,
                    label=start.label,
                    session=start.session,
                    nodes=list(start.nodes),
                    position=position,
                    since=start.since,
                    expected_at=self._expected_at(position),
                    message=start.refusal,
                )
                for position, start in enumerate(self._starts, 1)
            ]

    async def wait(
        self,
        start: WaitingStart,
        attempt: Callable[[], Awaitable[_Result]],
        look: _Look,
        seconds: float,
    ) -> _Result:
        """Call `attempt` whenever it is the start's turn, and return its result. Raise NodeError.

        `attempt` raises NodeError "no_room" while no node has room, for at most so many seconds. `look` returns the
        snapshots of nodes.
        """
        deadline = time.monotonic() + seconds
        with self._joined(start):
            while True:
                if self._takes_turn(start):
                    try:
                        result = await attempt()
                        self._add_interval()
                        return result
                    except NodeError as error:
                        if error.reason not in _PASSING_REASONS:
                            raise
                        start.refusal = str(error)
                    finally:
                        self._end_turn(start)
                left = deadline - time.monotonic()
                if self._is_closed:
                    raise NodeError("the Jupyter server has ended while the kernel waited for a node", "cancelled")
                if start.cancellation:
                    raise NodeError(start.cancellation, "cancelled")
                if left <= 0:
                    waited = f"the start has waited for {units.format_duration(seconds)}"
                    refusal = start.refusal or "other starts have come first"
                    raise NodeError(f"{refusal}; {waited} (c.GpuShareCluster.room_timeout)", "no_room")
                if start.look and start.look.done():
                    start.look.result()
                if self._takes_look(start):
                    start.look = asyncio.ensure_future(self._look(start, look))
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(start.wakened.wait(), min(left, _LOOK_SECONDS))
                start.wakened.clear()

    @contextlib.contextmanager
    def _joined(self, start: WaitingStart) -> Iterator[None]:
        with self._lock:
            if not self._starts:
                self._interval_began_at = time.time()
                self._seen = {}
            if start.refusal:
                start.tried_round = self._round
            start.first_look = self._looks + 1 + bool(self._looking)
            self._starts.append(start)
        self._report_change()
        try:
            yield
        finally:
            if start.look:
                start.look.cancel()
            self._end_look(start)  # because the task of the look never ends after a stop of its event loop
            with self._lock:
                self._starts.remove(start)
                self._wake_all()
            start.left.set_result(None)
            self._report_change()

    def _takes_turn(self, start: WaitingStart) -> bool:
        """Begin the turn of a start, and return true, if all starts before it have had theirs in this round."""
        with self._lock:
            if self._is_closed or start.cancellation:
                return False
            if start.tried_round >= self._round or self._looks < start.first_look:
                return False
            place = self._starts.index(start)
            for number, other in enumerate(self._starts):
                is_before = number < place and other.tried_round < self._round
                if other is not start and set(other.nodes) & set(start.nodes) and (other.is_trying or is_before):
                    return False
            start.is_trying, start.tried_round = True, self._round
            return True

    def _end_turn(self, start: WaitingStart) -> None:
        with self._lock:
            start.is_trying = False
            self._wake_all()
        self._report_change()

    def _takes_look(self, start: WaitingStart) -> bool:
        """Return whether this start gets the snapshots of the nodes now, for all starts."""
        with self._lock:
            first = next((one for one in self._starts if not one.is_trying), None)
            if start is not first or self._looking or time.monotonic() < self._next_look_at:
                return False
            self._looking = start
            return True

    def _end_look(self, start: WaitingStart) -> None:
        with self._lock:
            if self._looking is start:
                self._looking = None

    async def _look(self, start: WaitingStart, look: _Look) -> None:
        """Begin another round if the nodes have changed, or after a while."""
        began = time.monotonic()
        try:
            with self._lock:
                self._next_look_at = began + _LOOK_SECONDS
                nodes = sorted({node for one in self._starts for node in one.nodes})
            found = await look(nodes)
        finally:
            self._end_look(start)
        with self._lock:
            self._looks += 1
            seen = {node: _room_of(snapshot) for node, snapshot in found.items() if snapshot is not None}
            has_changed = {**self._seen, **seen} != self._seen
            if has_changed or began > self._next_round_at:
                self._seen.update(seen)
                self._round += 1
                self._next_round_at = began + (_SECOND_TRY_SECONDS if has_changed else _RETRY_SECONDS)
            self._wake_all()

    def _wake_all(self) -> None:
        for start in self._starts:
            start.wake()

    def _add_interval(self) -> None:
        with self._lock:
            now = time.time()
            self._intervals.append(now - self._interval_began_at)
            self._interval_began_at = now
            self._seen = {}  # so that the end of this kernel counts as a change, however soon

    def _expected_at(self, position: int) -> float | None:
        """Return the time, since 1970, at which the start at this position finds room if starts go on as before."""
        if not self._intervals:
            return None
        mean = sum(self._intervals) / len(self._intervals)
        expected_at = self._interval_began_at + position * mean
        return expected_at if expected_at > time.time() else None

    def _report_change(self) -> None:
        """Show the waiting starts anew, if what people see of them has changed."""
        with self._lock:
            records = self.records()
            if records != self._reported:
                self._reported = records
                start_records.save(records)
                self.on_change()


def _room_of(snapshot: _Snapshot) -> Any:
    """Return what decides in a snapshot whether the node has room."""
    clients = [(one["id"], one["devices"], one["quota"]) for one in snapshot["clients"]]
    return clients, [(one["uuid"], one["failed"]) for one in snapshot["devices"]], snapshot.get("config")


START_QUEUE = StartQueue()
