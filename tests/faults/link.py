"""What a process's agent says to its coordinator and hears of it: native/shim/socket.c and join.c, by function."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from .gates import (
    ASKING,
    AWAY,
    BUSY,
    DECLINED,
    DRAINED,
    EVICTING,
    IDLE,
    THERE,
    WANTS,
    closing_of,
    epoch_of,
    is_closing,
    is_open,
)
from .sockets import Connection, close_all

if TYPE_CHECKING:
    from .agent import Agent

SAID_IN_ORDER = (WANTS, EVICTING, DRAINED, IDLE, DECLINED, BUSY)
WITH_EPOCH = (EVICTING, DRAINED, IDLE, BUSY)
ANSWER, RETRY, STALE = 2.0, 0.25, 5.0
LONGEST_HOLD_OFF = 16.0


class Link:
    """Of one process."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.contact = AWAY
        self.connection: Connection | None = None
        self.away_since: float | None = None
        self.arrived: list[int] = []  # descriptors
        self.unsaid: dict[str, None] = {}
        self._received = bytearray()
        self._next_try = 0.0
        self._asked_at = self._welcomed_at = 0.0
        self._hold_off = 0.0
        self._word_at_hello = 0

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> int:
        agent = self._agent
        if self.connection is None:
            return -1
        line = json.dumps(message).encode() + b"\n"
        lines = agent.client.line_faults(agent, line) if descriptors is None else [line]
        sent = 1
        for one in lines:
            sent = self.connection.send(one, descriptors)
        return sent

    def say(self, message: str) -> None:
        if message in (IDLE, BUSY):
            self.unsaid.pop(IDLE, None)
            self.unsaid.pop(BUSY, None)
        self.unsaid[message] = None
        self.flush()

    def say_restored(self) -> None:
        agent = self._agent
        if self.contact == THERE:
            self.send({"type": "restored", "epoch": epoch_of(agent.orders.gate)})

    def flush(self) -> None:
        agent = self._agent
        if self.contact != THERE:
            return
        for message in SAID_IN_ORDER:
            if message not in self.unsaid:
                continue
            if (message == WANTS and not agent.report.waiting) or (message == EVICTING and not agent.memory_moves):
                del self.unsaid[message]
                continue
            epoch = agent.report.drained_epoch if message == DRAINED else epoch_of(agent.orders.gate)
            sent = self.send({"type": message, **({"epoch": epoch} if message in WITH_EPOCH else {})})
            if sent < 0:
                self.lose()
                return
            if sent:
                del self.unsaid[message]

    def lose(self) -> None:
        agent = self._agent
        was_there = self.contact == THERE
        self.contact = AWAY
        if was_there and agent.running:
            agent.lockmode.hold(True)
            if is_open(agent.orders.gate):
                agent.opens(agent.orders.gate)
                agent.program.woken()
        if self.connection:
            self.connection.close()
        self.connection = None
        close_all(self.arrived)
        self.arrived.clear()
        agent.lockmode.contact(False)
        self._received.clear()
        self.unsaid.clear()
        now = agent.clock.now
        if was_there or self.away_since is None:
            self.away_since = now
        self._next_try = now + max(RETRY, self._hold_off)

    def _holds_off(self) -> None:
        self._hold_off = min(self._hold_off * 2 or 1.0, LONGEST_HOLD_OFF)

    def step(self, now: float) -> Generator[None, None, float]:
        agent = self._agent
        if self.connection:
            yield from self._read_lines(now)
        self.flush()
        if self.contact == AWAY:
            if now >= self._next_try:
                yield from self._try_to_connect(now)
            return self._next_try if self.contact == AWAY else now + ANSWER
        if self.contact == ASKING:
            if now < self._asked_at + ANSWER:
                return self._asked_at + ANSWER
            self._holds_off()
            self.lose()
            return self._next_try
        heartbeat = max(agent.orders.heartbeat_ns / 1e9, self._welcomed_at)
        if now < heartbeat + STALE:
            return heartbeat + STALE  # a waiting thread sees to it that somebody looks
        self.lose()
        return self._next_try

    def _try_to_connect(self, now: float) -> Generator[None, None, None]:
        agent = self._agent
        self._next_try = now + RETRY
        if self.away_since is None:
            self.away_since = now
        connection = agent.host.connect(agent.pid, agent.client.uid, agent.kick)
        if connection is None:
            return
        if not agent.lockmode.ready(now):
            connection.close()
            return
        agent.orders.carry = agent.orders.hand_on = agent.orders.restore_ahead = 0
        self.contact = ASKING
        yield
        self.connection = connection
        agent.lockmode.contact(True)
        self._asked_at = now
        self._word_at_hello = agent.gate_word()
        hello = {
            "type": "hello",
            "wire": 1,
            "pid": agent.pid,
            "client": agent.client.name,
            "token": agent.client.token,
            "quota": agent.client.quota,
            "devices": [{"uuid": uuid, "name": "Fake GPU", "memory": agent.host.memory} for uuid in agent.devices],
            "simulated": True,
            "epoch": epoch_of(self._word_at_hello),
            "running": agent.running,
        }
        if self.send(hello, agent.files.descriptors()) <= 0:
            self.lose()

    def _read_lines(self, now: float) -> Generator[None, None, None]:
        while self.connection and (part := self.connection.receive()) is not None:
            data, descriptors = part
            self.arrived += descriptors
            if not data:
                self.lose()
                return
            self._received += data
            *lines, rest = self._received.split(b"\n")
            self._received = bytearray(rest)
            for line in lines:
                if line:
                    self._take_line(json.loads(line), now)
                    yield
                if self.connection is None:
                    return
            close_all(self.arrived)
            self.arrived.clear()

    def _take_line(self, message: dict[str, Any], now: float) -> None:
        agent = self._agent
        kind = message["type"]
        if kind == "error":
            agent.host.tell(f"{agent} is refused: {message}")
            agent.host.refused(agent, message)
            self._holds_off()
            self.lose()
        elif self.contact == ASKING and kind == "join":
            self._join()
            self._welcomed(now)
        elif self.contact == ASKING and kind == "welcome":
            self._welcomed(now)

    def _join(self) -> None:
        agent = self._agent
        agent.program.leave_slot()
        client, *locks = self.arrived
        self.arrived.clear()
        running = agent.running
        before = agent.files.join(client, locks, keep=running)
        if running:
            agent.old_locks += before
            agent.program.waits_for_nobody()  # who it waits for may not run beside it: a known limit, see the docs
        else:
            close_all(before)
        word = agent.orders.gate
        if running and is_open(word) and word == self._word_at_hello:
            agent.orders.gate = closing_of(word)

    def _welcomed(self, now: float) -> None:
        agent = self._agent
        agent.program.take_slot()
        self._hold_off = 0.0
        self._welcomed_at = now
        self.contact = THERE
        agent.lockmode.end()
        agent.program.woken()
        if agent.report.waiting:
            self.unsaid[WANTS] = None
        word = agent.gate_word()
        if is_closing(word) and agent.drained_of(word):
            self.unsaid[DRAINED] = None
