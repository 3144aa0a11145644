"""A process as the shim makes it: its agent (native/shim/agent.c, socket.c, relay.c), function by function.

Where the agent can be interrupted between two stores that others see, its steps yield: there the host may take the
processor away for a while, stop the process or kill it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from jupyter_gpushare.wire.page import METERED

from .clock import NEVER, Handle, Owner
from .lockmode import LockMode
from .memory import Files, flock
from .program import Program
from .sockets import Connection, close_all

if TYPE_CHECKING:
    from .host import ClientOf, Host

CLOSED, OPEN, CLOSING, STEP = 0, 1, 2, 3
AWAY, ASKING, THERE = "away", "asking", "there"
WANTS, EVICTING, DRAINED, IDLE, DECLINED, BUSY = "wants", "evicting", "drained", "idle", "declined", "busy"
SAID_IN_ORDER = (WANTS, EVICTING, DRAINED, IDLE, DECLINED, BUSY)
WITH_EPOCH = (EVICTING, DRAINED, IDLE, BUSY)
ANSWER, GRACE, RETRY, STALE = 2.0, 2.0, 0.25, 5.0
LONGEST_HOLD_OFF = 16.0
LOOK = 1.0


def is_open(word: int) -> bool:
    return bool(word & 1)


def is_closing(word: int) -> bool:
    return word & 3 == CLOSING


def epoch_of(word: int) -> int:
    return (word & ~METERED) >> 2


def closing_of(word: int) -> int:
    return epoch_of(word) << 2 | CLOSING


class Agent(Owner):
    """One process of a client."""

    def __init__(self, host: Host, client: ClientOf, pid: int, devices: tuple[str, ...]) -> None:
        super().__init__()
        self.host, self.clock, self.client, self.pid, self.devices = host, host.clock, client, pid, devices
        self.random = host.fork()
        self.files = Files(devices)
        self.orders, self.report = self.files.orders, self.files.report
        self.contact = AWAY
        self.connection: Connection | None = None
        self.lockmode = LockMode(self)
        self.program = Program(self)
        self.welcomes = 0
        self.refused = False
        self._handle: Handle | None = None
        self._steps: Iterator[None] | None = None
        self._again = False
        self._next = NEVER
        self._received = bytearray()
        self._arrived: list[int] = []  # descriptors
        self._old_locks: list[int] = []
        self._unsaid: dict[str, None] = {}
        self._wants_for = 0
        self._wants_later = False
        self.away_since: float | None = None
        self._next_try = 0.0
        self._asked_at = self._welcomed_at = 0.0
        self._hold_off = 0.0
        self._word_at_hello = 0
        self._latest_opening = 0
        # of the opening that is going on
        self._word = -1
        self._idle_since: float | None = None
        self._said_idle = self._stepping = False
        self._summed_at = self._submitted_at = 0.0
        # of the drain
        self._draining: int | None = None
        self._drain_began = 0.0
        self._moves_until = 0.0
        # of the relay
        self._named = self._done = 0
        self._stray = False
        self._relay_lock = -1
        host.started(self)
        self.kick()

    def __str__(self) -> str:
        return f"process {self.pid} of {self.client.name}"

    # --- when it looks

    def kick(self) -> None:
        """It looks as soon as the kernel lets it."""
        self._look_at(self.clock.now + self.random.expovariate(8000.0))

    def _look_at(self, due: float) -> None:
        if not self.alive:
            return
        if self._steps is not None:
            self._again = True
            return
        if self._handle is not None and self._handle.callback is not None:
            if self._handle.due <= due:
                return
            self._handle.cancel()
        self._handle = self.clock.at(due, self, self._look)

    def _look(self) -> None:
        if self._steps is None:
            self._steps = self._step()
        for _ in self._steps:
            if self.host.takes_processor(self):
                self.clock.at(
                    self.clock.now + self.random.expovariate(self.random.choice((5000.0, 200.0))), self, self._look
                )
                return
        self._steps = None
        again, self._again = self._again, False
        if again:
            self.kick()
        else:
            now = self.clock.now
            self._look_at(max(now + 2e-5, min(self._next, now + LOOK)))

    def _step(self) -> Generator[None, None, None]:
        now = self.clock.now
        following = yield from self._socket_step(now)
        yield
        if self.contact == AWAY:
            following = min(following, self.lockmode.step(now))
            yield
        self._relay_step(now)
        word = self.gate_word()
        if is_open(word):
            following = min(following, (yield from self._while_open(word, now)))
        elif is_closing(word) and not self.drained_of(word):
            following = min(following, (yield from self._while_closing(word, now)))
        else:
            following = min(following, self.program.look_at_memory(now))
        self._next = following

    # --- the gate

    @property
    def running(self) -> bool:
        word = self.orders.gate
        return is_open(word) or (is_closing(word) and not self.drained_of(word))

    def drained_of(self, word: int) -> bool:
        return bool(self.report.drained_epoch == epoch_of(word))

    def gate_word(self) -> int:
        word, latest = self.orders.gate, self._latest_opening
        if self.contact != THERE and is_closing(word) and epoch_of(word) < epoch_of(latest):
            self.orders.gate = word = closing_of(latest)
        return int(word)

    def lets_in(self, word: int) -> bool:
        """Out of reach, only by an opening that the agent has seen: it holds the lock that says so."""
        return self.contact == THERE or word == self._latest_opening

    def opens(self, word: int) -> None:
        """Before a gate is opened in this process, whoever does it here."""
        self._latest_opening = word

    def open_gate(self, word: int) -> None:
        self.opens(word)
        self.orders.gate = word
        self.program.woken()

    def _opened(self, word: int, now: float) -> None:
        self._word = word
        self.opens(word)
        self._idle_since = now
        self._said_idle = False
        self._stepping = word & 3 == STEP
        self._draining = None
        self.lockmode.hold(True)
        if self.contact != THERE:
            self.program.woken()
        self.host.tell(f"{self}: open {epoch_of(word)}{' step' * self._stepping} {self.lockmode.active * 'by itself'}")

    def _while_open(self, word: int, now: float) -> Generator[None, None, float]:
        orders = self.orders
        if self._word != word:
            self._opened(word, now)
            yield
        told = self.contact == THERE or (not self.lockmode.active and orders.hand_on)
        deadline = orders.deadline_ns / 1e9 if told else 0.0
        if deadline and now >= deadline:
            return (yield from self._close_by_deadline(word, now))
        latest = deadline or NEVER
        release = orders.idle_release_ns / 1e9
        watch = release and (self.lockmode.active or orders.contended)
        tick = LOOK if not watch else max(release / 4, 0.005)
        if now < self._summed_at + tick:
            return min(self._summed_at + tick, latest)
        self._summed_at = now
        if self.program.submitted():
            self._submitted_at = now
        if watch:
            self._look_for_idleness(now, release)
        return min(now + tick, latest)

    def _look_for_idleness(self, now: float, release: float) -> None:
        if self._submitted_at == now or self.program.inside:
            if self._said_idle and self.orders.hears & 8:
                self.say(BUSY)
            self._idle_since, self._said_idle = None, False
            return
        if self._said_idle and not self.lockmode.active:
            return
        if self.program.outstanding(now):
            self._idle_since = None
            return
        if self._idle_since is None:
            self._idle_since = now
        if now < self._idle_since + release or self.lockmode.idle(now) or self.contact != THERE:
            return
        self._said_idle = True
        self.say(IDLE)

    def _close_by_deadline(self, word: int, now: float) -> Generator[None, None, float]:
        if self.orders.gate != word:
            return now
        self.orders.gate = closing_of(word)
        yield
        return (yield from self._while_closing(closing_of(word), now))

    def _while_closing(self, word: int, now: float) -> Generator[None, None, float]:
        if self._stepping:
            self._stepping = False
            self.program.woken()
        due = yield from self._drain_step(word, now)
        if due is not None:
            if now > self._drain_began + 0.02:
                self._say_later_wants()
            return due
        if not self.lockmode.active:
            self.lockmode.hold(False)
        if self.contact == THERE:
            yield
            self.say(DRAINED)
        self._say_later_wants()
        close_all(self._old_locks)
        self._old_locks.clear()
        return now if self.lockmode.active else NEVER

    def _drain_step(self, word: int, now: float) -> Generator[None, None, float | None]:
        """None: drained. Else when to look again."""
        if self._draining != word:
            self._draining = word
            self._drain_began = now
            self._moves_until = 0.0
            yield  # the membarrier
        if self.program.inside:
            return now + 0.0003
        if self.program.outstanding(now):
            return min(now + 0.0005, self.program.ends(now))
        if not self._moves_until:
            self._moves_until = now + self.program.evict()
            if self._moves_until > now + 0.002 and self.orders.hears & 1:
                self.say(EVICTING)
        if now < self._moves_until:
            return self._moves_until
        if self.orders.gate != word:
            return now
        yield
        self._hand_on()
        yield
        self._draining = None
        self.host.tell(f"{self}: drained {epoch_of(word)}")
        self.report.drained_epoch = epoch_of(word)
        yield
        return None

    # --- wanting

    def want(self, word: int) -> None:
        """A thread stands at the gate."""
        if self._wants_for == word + 1:
            return
        self._wants_for = word + 1
        if self.contact == THERE and is_closing(word) and not self.drained_of(word):
            self._wants_later = True
        else:
            self._say_wants()

    def unwant(self) -> None:
        """The last thread that stood there was interrupted."""
        self._wants_later = False
        self._wants_for = 0
        if self.contact == THERE:
            self._send({"type": "unwants"})
        word = self.orders.gate
        if self.report.waiting and not is_open(word):
            self.want(word)

    def _say_wants(self) -> None:
        if self.contact != THERE or self._send({"type": "wants"}) <= 0:
            self._unsaid[WANTS] = None
            self.kick()

    def _say_later_wants(self) -> None:
        later, self._wants_later = self._wants_later, False
        if later and self.report.waiting:
            self._say_wants()

    # --- the relay

    def _relay_step(self, now: float) -> None:
        epoch = self.orders.carry
        if epoch != self._named:
            self._named = epoch
            self._relay_rings()
        if not self._stray:
            return
        self._stray = False
        if self.contact == THERE:
            self.say(DECLINED)
        else:
            self.lockmode.ready(now)

    def _relay_rings(self) -> None:
        """Its thread looks at the page, unless it waits for the lock."""
        if self._relay_lock >= 0:
            return
        epoch = self.orders.carry
        if not epoch:
            self._done = 0
        elif epoch != self._done:
            self._done = epoch
            self._relay_lock = os.dup(self.files.locks[0])
            self.host.waits_for_lock(self, self._relay_lock)

    def has_lock(self) -> None:
        """The relay's thread: `flock` has returned."""
        self.clock.at(self.clock.now + self.random.expovariate(20_000.0), self, self._relay_opens, self._done)

    def _relay_opens(self, epoch: int) -> None:
        opened = self._relay_open_gate(epoch)
        now_named = self.orders.carry
        if not opened and now_named in (0, epoch):
            self._stray = True
        self.kick()
        os.close(self._relay_lock)
        self._relay_lock = -1
        self._relay_rings()

    def _relay_open_gate(self, epoch: int) -> bool:
        word = self.orders.gate
        if self.orders.carry != epoch or self.contact == ASKING or self.lockmode.active:
            return False
        if is_open(word) or epoch_of(word) == epoch:
            return True
        if not self.report.waiting:
            return False
        self.host.tell(f"{self}: takes over {epoch}")
        self.open_gate(epoch << 2 | OPEN)
        return True

    def _hand_on(self) -> None:
        if not self.orders.hand_on or self.lockmode.active or len(self.devices) != 1 or not self.lockmode.alone:
            return
        flock(self.files.locks[0], fcntl.LOCK_UN)
        if not self.orders.hand_on:
            flock(self.files.locks[0], fcntl.LOCK_EX)

    # --- messages out

    def _send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> int:
        if self.connection is None:
            return -1
        line = json.dumps(message).encode() + b"\n"
        lines = self.client.line_faults(self, line) if descriptors is None else [line]
        sent = 1
        for one in lines:
            sent = self.connection.send(one, descriptors)
        return sent

    def say(self, message: str) -> None:
        if message in (IDLE, BUSY):
            self._unsaid.pop(IDLE, None)
            self._unsaid.pop(BUSY, None)
        self._unsaid[message] = None
        self._flush()

    def say_restored(self) -> None:
        if self.contact == THERE:
            self._send({"type": "restored", "epoch": epoch_of(self.orders.gate)})

    def _flush(self) -> None:
        if self.contact != THERE:
            return
        for message in SAID_IN_ORDER:
            if message not in self._unsaid:
                continue
            if message == WANTS and not self.report.waiting:
                del self._unsaid[WANTS]
                continue
            epoch = self.report.drained_epoch if message == DRAINED else epoch_of(self.orders.gate)
            sent = self._send({"type": message, **({"epoch": epoch} if message in WITH_EPOCH else {})})
            if sent < 0:
                self.lose()
                return
            if sent:
                del self._unsaid[message]

    # --- the connection

    def lose(self) -> None:
        was_there = self.contact == THERE
        self.contact = AWAY
        if self.running:
            self.lockmode.hold(True)
        if self.connection:
            self.connection.close()
        self.connection = None
        close_all(self._arrived)
        self._arrived.clear()
        self.lockmode.contact(False)
        self._received.clear()
        self._unsaid.clear()
        now = self.clock.now
        if was_there or self.away_since is None:
            self.away_since = now
        self._next_try = now + max(RETRY, self._hold_off)

    def _holds_off(self) -> None:
        self._hold_off = min(self._hold_off * 2 or 1.0, LONGEST_HOLD_OFF)

    def _socket_step(self, now: float) -> Generator[None, None, float]:
        if self.connection:
            yield from self._read_lines(now)
        self._flush()
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
        heartbeat = max(self.orders.heartbeat_ns / 1e9, self._welcomed_at)
        if now < heartbeat + STALE:
            return heartbeat + STALE  # a waiting thread sees to it that somebody looks
        self.lose()
        return self._next_try

    def _try_to_connect(self, now: float) -> Generator[None, None, None]:
        self._next_try = now + RETRY
        if self.away_since is None:
            self.away_since = now
        connection = self.host.connect(self.pid, self.client.uid, self.kick)
        if connection is None:
            return
        if not self.lockmode.ready(now):
            connection.close()
            return
        self.orders.carry = self.orders.hand_on = self.orders.restore_ahead = 0
        self.contact = ASKING
        yield
        self.connection = connection
        self.lockmode.contact(True)
        self._asked_at = now
        self._word_at_hello = self.gate_word()
        hello = {
            "type": "hello",
            "wire": 1,
            "pid": self.pid,
            "client": self.client.name,
            "token": self.client.token,
            "quota": self.client.quota,
            "devices": [{"uuid": uuid, "name": "Fake GPU", "memory": self.host.memory} for uuid in self.devices],
            "simulated": True,
            "epoch": epoch_of(self._word_at_hello),
            "running": self.running,
        }
        if self._send(hello, self.files.descriptors()) <= 0:
            self.lose()

    def _read_lines(self, now: float) -> Generator[None, None, None]:
        while self.connection and (part := self.connection.receive()) is not None:
            data, descriptors = part
            self._arrived += descriptors
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
            close_all(self._arrived)
            self._arrived.clear()

    def _take_line(self, message: dict[str, Any], now: float) -> None:
        kind = message["type"]
        if kind == "error":
            self.refused = True
            self.host.tell(f"{self} is refused: {message}")
            self.host.refused(self, message)
            self._holds_off()
            self.lose()
        elif self.contact == ASKING and kind == "join":
            self._join()
            self._welcomed(now)
        elif self.contact == ASKING and kind == "welcome":
            self._welcomed(now)

    def _join(self) -> None:
        self.program.leave_slot()
        client, *locks = self._arrived
        self._arrived.clear()
        running = self.running
        before = self.files.join(client, locks)
        if running:
            self._old_locks += before
        else:
            close_all(before)
        word = self.orders.gate
        if running and is_open(word) and word == self._word_at_hello:
            self.orders.gate = closing_of(word)

    def _welcomed(self, now: float) -> None:
        self.refused = False
        self.welcomes += 1
        self.program.take_slot()
        self._hold_off = 0.0
        self._welcomed_at = now
        self.contact = THERE
        self.lockmode.end()
        if self.report.waiting:
            self._unsaid[WANTS] = None
        word = self.gate_word()
        if is_closing(word) and self.drained_of(word):
            self._unsaid[DRAINED] = None

    # --- the end

    def locks_of(self, uuid: str) -> list[int]:
        """Its client's, and those by which it ran before it was given these, until it has drained."""
        return [self.files.locks[self.devices.index(uuid)], *self._old_locks]

    @property
    def descriptors(self) -> int:
        """How many it has open, its socket aside."""
        own = 5 + len(self.files.locks)  # mmap has one of its own of either page
        return own + (self._relay_lock >= 0) + len(self._old_locks) + len(self._arrived)

    def die(self) -> None:
        """Its work on the device ends with it; the kernel closes what it had open, record locks first."""
        self.alive = False
        self.program.die()
        self._steps = None
        self.host.forget_lock_waiter(self)
        if self._relay_lock >= 0:
            os.close(self._relay_lock)
        close_all(self._old_locks)
        close_all(self._arrived)
        self.files.close()
        self.orders = self.report = None
        if self.connection:
            self.connection.close()
