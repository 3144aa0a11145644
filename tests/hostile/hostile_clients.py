"""Hostile clients, which send random messages and corrupt their pages at random."""

from __future__ import annotations

import contextlib
import os
import socket
from random import Random

from jupyter_gpushare.agent.pages import SEALS, create_memfd
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import layout

from .in_process_coordinator import ConnectedPair, InProcessCoordinator
from .message_generator import KINDS, Kind, MessageGenerator
from .page_corruption import CHANGING_PAGE_PID, corrupt_page

MAX_CLIENTS = 12  # hostile clients at a time
MAX_LINES_AT_ONCE = 60


_OF_PROCESSES: tuple[Kind, ...] = (messages.Details,)
_OF_KERNELS: tuple[Kind, ...] = (messages.Cell,)
_REQUESTS = tuple(kind for kind in KINDS if issubclass(kind, messages.Request))
_FIRST = {_OF_PROCESSES: messages.Hello, _OF_KERNELS: messages.Attach, (): None}


class HostileClient:
    """Connection of a hostile user, which acts as a process, as a kernel or as neither."""

    def __init__(
        self, in_process: InProcessCoordinator, random: Random, lines: MessageGenerator, uid: int, devices: list[str]
    ) -> None:
        self._random, self._lines, self._devices = random, lines, devices
        self._unfinished = b""
        self._pages: list[tuple[str, int]] = []  # (struct, descriptor) of shared pages
        self._kinds, self._first = random.choice([*_FIRST.items()])
        self.connection: ConnectedPair | None = in_process.connect(uid)

    def act(self) -> None:
        """Do one random action; `connection` is None after a disconnect."""
        assert self.connection
        random = self._random
        how = random.random()
        try:
            if self._first and how < 0.97:
                self._send_first_message(self._first)
            elif how < 0.7:
                self._send_lines()
            elif how < 0.85 and self._pages:
                struct, descriptor = random.choice(self._pages)
                corrupt_page(random, descriptor, struct)
            elif how < 0.94:
                self._read_answers()
            elif how < 0.96:
                given = [os.open(os.devnull, os.O_RDONLY) for _ in range(random.choice((1, 3, 80)))]
                self._send(self._next_line() + b"\n", given)
            elif how < 0.975:
                self.connection.socket.shutdown(socket.SHUT_WR)
            else:
                self.leave()
        except BlockingIOError:
            self._read_answers()  # the coordinator reads no lines while its replies are unread
        except OSError:
            self.leave()

    def _send_first_message(self, kind: Kind) -> None:
        self._first = None
        if kind is messages.Hello:
            self._send_hello()
        else:
            self._send(self._lines.message(kind) + b"\n", [])

    def _next_line(self) -> bytes:
        """Return a random line, mostly an allowed one, because a forbidden one ends the connection."""
        if self._kinds is _OF_PROCESSES and self._random.random() < 0.5:
            return messages.DOORBELL[:-1]
        how = self._random.random()
        return self._lines.line(
            self._random.choice(KINDS if how < 0.002 else self._kinds if how < 0.6 and self._kinds else _REQUESTS)
        )

    def _send_lines(self) -> None:
        data = self._unfinished + b"\n".join(
            self._next_line() for _ in range(self._random.randrange(1, MAX_LINES_AT_ONCE))
        )
        self._unfinished = b""
        if self._random.random() < 0.3:  # the rest follows later or never
            cut = self._random.randrange(len(data) + 1)
            data, self._unfinished = data[:cut], data[cut:] + b"\n"
        else:
            data += b"\n"
        assert self.connection
        while data:
            data = data[self.connection.socket.send(data) :]

    def _read_answers(self) -> None:
        """Read and discard replies."""
        assert self.connection
        with contextlib.suppress(BlockingIOError):
            if not self.connection.socket.recv(1 << 20):
                self.leave()

    def _send_hello(self) -> None:
        random = self._random
        devices = random.sample(self._devices, random.choice((1, 1, 1, 2, 6)))
        given = [self._make_memory("gpushare_page"), self._make_memory("gpushare_client")]
        if random.random() < 0.1:
            random.shuffle(given)
            while given and random.random() < 0.5:
                os.close(given.pop())
        reports = [{"uuid": uuid, "memory": random.choice((0, 8 << 30, (1 << 62) - 1))} for uuid in devices]
        fields = {"devices": reports} if random.random() < 0.9 else {}
        line = self._lines.message(messages.Hello, **fields)
        for name in ("gpushare_page", "gpushare_client"):
            if random.random() < 0.7:
                for descriptor in given[:2]:
                    with contextlib.suppress(OSError):
                        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"/memfd:{name}"):
                            self._pages.append((name, os.dup(descriptor)))
        self._send(line + b"\n", given)

    def _make_memory(self, struct: str) -> int:
        random = self._random
        how = random.random()
        if how < 0.03:
            return os.open(os.devnull, os.O_RDWR)
        if how < 0.06:
            return os.pidfd_open(os.getpid())
        if how < 0.09:
            return create_memfd(struct, seals=random.choice((0, SEALS & 1, SEALS & 6)))
        if how < 0.12:
            return create_memfd(struct, size=random.choice((0, 16, 100, 1 << 20)), magic=random.choice((None, 0, 1)))
        made = create_memfd(struct)
        if random.random() < 0.5:
            corrupt_page(random, made, struct)
            os.pwrite(made, layout()[1]["GPUSHARE_PAGE_MAGIC"].to_bytes(4, "little"), 0)
        if random.random() < 0.3:
            os.pwrite(made, CHANGING_PAGE_PID.to_bytes(4, "little"), 12)
        return made

    def _send(self, line: bytes, descriptors: list[int]) -> None:
        assert self.connection
        try:
            self.connection.send(line, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def leave(self) -> None:
        for _, descriptor in self._pages:
            os.close(descriptor)
        self._pages.clear()
        if self.connection:
            self.connection.close()
            self.connection = None
