"""One connection: bytes and descriptors in, lines out. Knows nothing of scheduling."""

from __future__ import annotations

import array
import asyncio
import os
import select
import socket
from collections.abc import Callable

from ..wire import messages
from .authority import Identity, process_of
from .limits import Bucket, Ledger

_MAX_DESCRIPTORS = 2  # page and client page
_MAX_BACKLOG = 4 << 20
_AT_ONCE = 16  # messages of one connection that are answered before others are heard


class Peer:
    """The other end of a connection: `user`, who it is, and its `pid` and `uid` as the kernel says."""

    def __init__(
        self,
        sock: socket.socket,
        identity: Identity,
        on_line: Callable[[Peer, bytes], None],
        on_end: Callable[[Peer], None],
        ledger: Ledger | None = None,
        max_messages: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._socket = sock
        self.user, self.admin, self.pid, self.uid = identity
        self._on_line = on_line
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._backlog = bytearray()
        self.descriptors: list[int] = []  # that came with the line being handled, until somebody takes them
        self.open = True
        self._failed = False
        self._ledger = ledger or Ledger()
        self._counted = 0  # bytes of this connection in the ledger
        self._bucket = Bucket(max_messages, self._loop.time())
        self._pause: asyncio.TimerHandle | None = None
        self._held = False  # until the last message is answered
        self._stopped = False  # because of that nothing is read
        sock.setblocking(False)
        self._fileno = sock.fileno()
        self._loop.add_reader(self._fileno, self._readable)

    def __str__(self) -> str:
        return f"pid {self.pid} (user {self.user})"

    @property
    def congested(self) -> bool:
        """Whether the peer reads more slowly than we write."""
        return bool(self._backlog) or self._failed

    @property
    def hung_up(self) -> bool:
        """Whether the other end is closed, and would hear nothing; one that has only finished writing is not."""
        poll = select.poll()
        poll.register(self._fileno, 0)
        return not self.open or any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))

    def open_process(self) -> int:
        """A pidfd of the process at the other end. Raises OSError when it has ended or cannot be seen."""
        return process_of(self._socket, self.pid)

    def take_descriptors(self) -> list[int]:
        taken, self.descriptors = self.descriptors, []
        return taken

    def send(self, line: bytes, descriptors: list[int] | None = None) -> None:
        """Send a line, now if the socket takes it. A peer that has not read megabytes of them is dropped.

        Not before this returns: whoever sends may be in the middle of a list of peers.
        """
        if not self.open or self._failed:
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
            self._count()
            if len(self._backlog) > _MAX_BACKLOG:
                self._fail()

    def _count(self) -> None:
        """Whoever has too much in all his connections loses the one that wants more."""
        kept = len(self._received) + len(self._backlog) if self.open else 0
        grows = kept > self._counted
        self._ledger.buffered += kept - self._counted
        self._counted = kept
        if grows and self._ledger.overdrawn:
            self._fail()

    def _fail(self) -> None:
        self._failed = True
        self._loop.call_soon(self.drop)

    def drop(self) -> None:
        """End the connection. `on_end` is called once, before this returns."""
        if not self.open:
            return
        self.silence()
        self._count()
        self._socket.close()
        for descriptor in self.take_descriptors():
            os.close(descriptor)
        self._on_end(self)

    def silence(self) -> None:
        """Hear and say nothing any more. The other end notices when this process ends."""
        if self._pause:
            self._pause.cancel()
        self._loop.remove_reader(self._fileno)
        self._loop.remove_writer(self._fileno)
        self.open = False

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
        self._split()

    def _split(self) -> None:
        *lines, rest = self._received.split(b"\n")
        for number, line in enumerate(lines):
            stops = self._held or number >= _AT_ONCE
            wait = 0.0 if stops else self._pause_before()
            if wait or stops:
                self._received = bytearray(b"\n").join([*lines[number:], rest])
                self._rest(wait)
                return
            if line:
                self._hand_on(bytes(line))
            if not self.open:
                return
        self._received = rest
        self._count()
        if len(rest) > messages.MAX_LINE:
            self._hand_on(bytes(rest))

    def _pause_before(self) -> float:
        """For how many seconds the next message has to wait."""
        return self._users_pause() or self._bucket.take(self._loop.time())

    def _users_pause(self) -> float:
        return 0.0 if self.admin else self._ledger.rest(self._loop.time())

    def _hand_on(self, line: bytes) -> None:
        began = self._loop.time()
        self._on_line(self, line)
        self.spend(self._loop.time() - began)

    def spend(self, seconds: float) -> None:
        """Charge its user for time that its messages have taken of the coordinator; an admin's are free."""
        if not self.admin:
            self._ledger.spend(self._loop.time(), seconds)

    def hold(self) -> None:
        """Take no further message of this connection until `release`, because the answer to the last one takes long."""
        self._held = True

    def release(self) -> None:
        self._held = False
        if self._stopped and self.open:
            self._stopped = False
            self._pause = self._loop.call_later(0, self._resume)

    def _rest(self, seconds: float) -> None:
        """Read nothing of this connection for so long, or while it is held; the system keeps a bounded backlog."""
        self._count()
        self._loop.remove_reader(self._fileno)
        if self._held:
            self._stopped = True
        else:
            self._pause = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pause = None
        if wait := self._users_pause():  # one of many connections of a user, that wake up together
            self._pause = self._loop.call_later(wait, self._resume)
            return
        self._split()
        if self.open and not self._stopped and self._pause is None:
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
        self._count()
        if not self._backlog:
            self._loop.remove_writer(self._fileno)
