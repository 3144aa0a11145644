"""Connection of a peer: lines and descriptors in, lines out, and pauses of the reading by the limits of the peer."""

from __future__ import annotations

import array
import asyncio
import os
import select
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

from ...wire import messages
from ...wire.client import encode
from .peer_identity import Identity, open_peer_pidfd
from .rate_limits import TokenBucket, UserBudget

_MAX_DESCRIPTORS = 2  # page and client page
_MAX_BACKLOG_BYTES = 4 << 20
_MAX_MESSAGES_AT_ONCE = 16  # from one connection before the event loop reads from other connections

refusal_counts: Counter[str] = Counter()  # refused messages of this process, by reason


class Connection:
    """Socket connection with its peer's `user`, and the peer's `pid` and `uid` as Linux reports them."""

    def __init__(
        self,
        sock: socket.socket,
        identity: Identity,
        on_line: Callable[[Connection, bytes], None],
        on_closed: Callable[[Connection], None],
        budget: UserBudget | None = None,
        max_messages: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._socket = sock
        self.user, self.admin, self.pid, self.uid = identity
        self._on_line = on_line
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._backlog = bytearray()
        self.descriptors: list[int] = []  # received with the present line, until `take_descriptors`
        self.is_open = True
        self._has_failed = False
        self._budget = budget or UserBudget()
        self._charged_bytes = 0  # of this connection, in the budget
        self._bucket = TokenBucket(max_messages, self._loop.time())
        self._pause_timer: asyncio.TimerHandle | None = None
        self._is_held = False  # between `hold` and `release`
        self._is_paused = False  # reading is paused because the connection is held
        sock.setblocking(False)
        self._fileno = sock.fileno()
        self._loop.add_reader(self._fileno, self._readable)

    def __str__(self) -> str:
        return f"pid {self.pid} (user {self.user})"

    @property
    def is_congested(self) -> bool:
        """Return whether the peer has not read all lines that were sent to it."""
        return bool(self._backlog) or self._has_failed

    @property
    def has_hung_up(self) -> bool:
        """Return whether the other end is closed. An end that has only finished writing still receives replies."""
        poll = select.poll()
        poll.register(self._fileno, 0)
        return not self.is_open or any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    def open_pidfd(self) -> int:
        """Open a pidfd of the process at the other end. Raises OSError if it has ended or is not visible here."""
        return open_peer_pidfd(self._socket, self.pid)

    def take_descriptors(self) -> list[int]:
        taken, self.descriptors = self.descriptors, []
        return taken

    def send(self, line: bytes, descriptors: list[int] | None = None) -> None:
        """Send a line, at once if the socket accepts it. A peer with megabytes of unread lines is dropped.

        The drop happens after this has returned, because the caller may be iterating over connections.
        """
        if not self.is_open or self._has_failed:
            return
        if descriptors and self._backlog:
            self._fail()  # the backlog cannot contain descriptors
            return
        sent = 0
        try:
            if descriptors:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
                sent = self._socket.sendmsg([line], [rights], socket.MSG_NOSIGNAL)
            elif not self._backlog:
                sent = self._socket.send(line, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            if descriptors:
                self._fail()
                return
        except OSError:
            self._fail()
            return
        if sent < len(line):
            if not self._backlog:
                self._loop.add_writer(self._fileno, self._writable)
            self._backlog += line[sent:]
            self._charge_buffers()
            if len(self._backlog) > _MAX_BACKLOG_BYTES:
                self._fail()

    def _charge_buffers(self) -> None:
        """Charge the buffers to the user's budget; a connection that grows beyond the budget fails."""
        size = len(self._received) + len(self._backlog) if self.is_open else 0
        grows = size > self._charged_bytes
        self._budget.buffered_bytes += size - self._charged_bytes
        self._charged_bytes = size
        if grows and self._budget.is_exhausted:
            self._fail()

    def _fail(self) -> None:
        self._has_failed = True
        self._loop.call_soon(self.drop)

    def drop(self) -> None:
        """End the connection. `on_closed` is called once, before this returns."""
        if not self.is_open:
            return
        self.mute()
        self._charge_buffers()
        self._socket.close()
        for descriptor in self.take_descriptors():
            os.close(descriptor)
        self._on_closed(self)

    def mute(self) -> None:
        """Stop reading and writing. The other end detects the end of the connection only when this process ends."""
        if self._pause_timer:
            self._pause_timer.cancel()
        self._loop.remove_reader(self._fileno)
        self._loop.remove_writer(self._fileno)
        self.is_open = False

    def _readable(self) -> None:
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                messages.MAX_LINE, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.drop()
            return
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                self.descriptors.extend(received)
        if not data or flags & socket.MSG_CTRUNC or len(self.descriptors) > _MAX_DESCRIPTORS:
            self.drop()
            return
        self._received += data
        self._split_lines()

    def _split_lines(self) -> None:
        *lines, rest = self._received.split(b"\n")
        for number, line in enumerate(lines):
            must_stop = self._is_held or number >= _MAX_MESSAGES_AT_ONCE
            wait = 0.0 if must_stop else self._connection_pause()
            if wait or must_stop:
                self._received = bytearray(b"\n").join([*lines[number:], rest])
                self._pause_reading(wait)
                return
            if line:
                self._deliver(bytes(line))
            if not self.is_open:
                return
        self._received = rest
        self._charge_buffers()
        if len(rest) > messages.MAX_LINE:
            self._deliver(bytes(rest))

    def _connection_pause(self) -> float:
        """Return the seconds for which the next message must wait."""
        return self._user_pause() or self._bucket.take(self._loop.time())

    def _user_pause(self) -> float:
        return 0.0 if self.admin else self._budget.seconds_until_allowed(self._loop.time())

    def _deliver(self, line: bytes) -> None:
        started_at = self._loop.time()
        self._on_line(self, line)
        self.charge(self._loop.time() - started_at)

    def charge(self, seconds: float) -> None:
        """Charge the user for the time of its messages in the coordinator; messages of admins are free."""
        if not self.admin:
            self._budget.charge(self._loop.time(), seconds)

    def hold(self) -> None:
        """Handle no further message of this connection until `release`, because the last reply takes long."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        if self._is_paused and self.is_open:
            self._is_paused = False
            self._pause_timer = self._loop.call_later(0, self._resume)

    def _pause_reading(self, seconds: float) -> None:
        """Pause reading for some seconds, or while the connection is held; the socket buffer bounds unread bytes."""
        self._charge_buffers()
        self._loop.remove_reader(self._fileno)
        if self._is_held:
            self._is_paused = True
        else:
            self._pause_timer = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pause_timer = None
        if wait := self._user_pause():  # another connection of the user has used up the budget
            self._pause_timer = self._loop.call_later(wait, self._resume)
            return
        self._split_lines()
        if self.is_open and not self._is_paused and self._pause_timer is None:
            self._loop.add_reader(self._fileno, self._readable)

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._backlog, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.drop()
            return
        del self._backlog[:sent]
        self._charge_buffers()
        if not self._backlog:
            self._loop.remove_writer(self._fileno)


def reply(connection: Connection, number: int, result: Any) -> None:
    """Send the result of the request `number`."""
    connection.send(encode(messages.Reply(id=number, result=result)))


def refuse(connection: Connection, number: int, reason: str, message: str) -> None:
    """Send an error. `number` is 0 for a message that is no request; programs read `reason`, users read `message`."""
    refusal_counts[reason] += 1
    connection.send(encode(messages.Error(id=number, reason=reason, message=message)))
