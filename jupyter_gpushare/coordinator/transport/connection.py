"""One connection: bytes and descriptors in, lines out. Knows nothing of scheduling."""

from __future__ import annotations

import array
import asyncio
import os
import select
import socket
from collections.abc import Callable

from ...wire import messages
from .peer_identity import Identity, open_peer_pidfd
from .rate_limits import TokenBucket, UserBudget

_MAX_DESCRIPTORS = 2  # page and client page
_MAX_BACKLOG_BYTES = 4 << 20
_MAX_MESSAGES_AT_ONCE = 16  # messages of one connection that are answered before others are heard


class Connection:
    """The other end of a connection: `user`, who it is, and its `pid` and `uid` as the kernel says."""

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
        self.descriptors: list[int] = []  # that came with the line being handled, until somebody takes them
        self.is_open = True
        self._has_failed = False
        self._budget = budget or UserBudget()
        self._charged_bytes = 0  # bytes of this connection in the budget
        self._bucket = TokenBucket(max_messages, self._loop.time())
        self._pause_timer: asyncio.TimerHandle | None = None
        self._is_held = False  # until the last message is answered
        self._is_paused = False  # because of that nothing is read
        sock.setblocking(False)
        self._fileno = sock.fileno()
        self._loop.add_reader(self._fileno, self._readable)

    def __str__(self) -> str:
        return f"pid {self.pid} (user {self.user})"

    @property
    def is_congested(self) -> bool:
        """Whether the peer reads more slowly than we write."""
        return bool(self._backlog) or self._has_failed

    @property
    def has_hung_up(self) -> bool:
        """Whether the other end is closed, and would hear nothing; one that has only finished writing is not."""
        poll = select.poll()
        poll.register(self._fileno, 0)
        return not self.is_open or any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    def open_pidfd(self) -> int:
        """A pidfd of the process at the other end. Raises OSError when it has ended or cannot be seen."""
        return open_peer_pidfd(self._socket, self.pid)

    def take_descriptors(self) -> list[int]:
        taken, self.descriptors = self.descriptors, []
        return taken

    def send(self, line: bytes, descriptors: list[int] | None = None) -> None:
        """Send a line, now if the socket takes it. A peer that has not read megabytes of them is dropped.

        Not before this returns: whoever sends may be in the middle of a list of peers.
        """
        if not self.is_open or self._has_failed:
            return
        if descriptors and self._backlog:
            self._fail()  # they cannot wait in line
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
        """Whoever has too much in all his connections loses the one that wants more."""
        kept = len(self._received) + len(self._backlog) if self.is_open else 0
        grows = kept > self._charged_bytes
        self._budget.buffered_bytes += kept - self._charged_bytes
        self._charged_bytes = kept
        if grows and self._budget.is_exhausted:
            self._fail()

    def _fail(self) -> None:
        self._has_failed = True
        self._loop.call_soon(self.drop)

    def drop(self) -> None:
        """End the connection. `on_end` is called once, before this returns."""
        if not self.is_open:
            return
        self.mute()
        self._charge_buffers()
        self._socket.close()
        for descriptor in self.take_descriptors():
            os.close(descriptor)
        self._on_closed(self)

    def mute(self) -> None:
        """Hear and say nothing any more. The other end notices when this process ends."""
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
            stops = self._is_held or number >= _MAX_MESSAGES_AT_ONCE
            wait = 0.0 if stops else self._connection_pause()
            if wait or stops:
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
        """For how many seconds the next message has to wait."""
        return self._user_pause() or self._bucket.take(self._loop.time())

    def _user_pause(self) -> float:
        return 0.0 if self.admin else self._budget.seconds_until_allowed(self._loop.time())

    def _deliver(self, line: bytes) -> None:
        began = self._loop.time()
        self._on_line(self, line)
        self.charge(self._loop.time() - began)

    def charge(self, seconds: float) -> None:
        """Charge its user for time that its messages have taken of the coordinator; an admin's are free."""
        if not self.admin:
            self._budget.charge(self._loop.time(), seconds)

    def hold(self) -> None:
        """Take no further message of this connection until `release`, because the answer to the last one takes long."""
        self._is_held = True

    def release(self) -> None:
        self._is_held = False
        if self._is_paused and self.is_open:
            self._is_paused = False
            self._pause_timer = self._loop.call_later(0, self._resume)

    def _pause_reading(self, seconds: float) -> None:
        """Read nothing of this connection for so long, or while it is held; the system keeps a bounded backlog."""
        self._charge_buffers()
        self._loop.remove_reader(self._fileno)
        if self._is_held:
            self._is_paused = True
        else:
            self._pause_timer = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pause_timer = None
        if wait := self._user_pause():  # one of many connections of a user, that wake up together
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
