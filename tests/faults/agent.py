"""A process as the shim makes it: its agent (native/shim/agent.c), function by function.

Where the agent can be interrupted between two stores that others see, its steps yield: there the host may take the
processor away for a while, stop the process or kill it.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from .clock import NEVER, Handle, Owner
from .gates import (
    AWAY,
    BUSY,
    DRAINED,
    EVICTING,
    IDLE,
    STEP,
    THERE,
    WANTS,
    closing_of,
    epoch_of,
    is_closing,
    is_open,
)
from .link import Link
from .lockmode import LockMode
from .memory import Files, flock
from .program import Program
from .relay import Relay
from .sockets import close_all

if TYPE_CHECKING:
    from .host import ClientOf, Host

LOOK = 1.0


class Agent(Owner):
    """One process of a client."""

    def __init__(self, host: Host, client: ClientOf, pid: int, devices: tuple[str, ...]) -> None:
        super().__init__()
        self.host, self.clock, self.client, self.pid, self.devices = host, host.clock, client, pid, devices
        self.random = host.fork()
        self.files = Files(devices)
        self.orders, self.report = self.files.orders, self.files.report
        self.link = Link(self)
        self.relay = Relay(self)
        self.lockmode = LockMode(self)
        self.program = Program(self)
        self._handle: Handle | None = None
        self._steps: Iterator[None] | None = None
        self._again = False
        self._next = NEVER
        self.old_locks: list[int] = []
        self._wants_for = 0
        self._wants_later = False
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
        following = yield from self.link.step(now)
        yield
        if self.contact == AWAY:
            following = min(following, self.lockmode.step(now))
            yield
        self.relay.step(now)
        word = self.gate_word()
        if is_open(word) and self.lets_in(word):
            following = min(following, (yield from self._while_open(word, now)))
        elif is_closing(word) and not self.drained_of(word):
            following = min(following, (yield from self._while_closing(word, now)))
        else:
            following = min(following, self.program.look_at_memory(now))
        self._next = following

    # --- the gate

    @property
    def contact(self) -> str:
        return self.link.contact

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
        elif self.contact == AWAY and is_open(word) and word != latest:
            self.orders.gate = self._latest_opening = word = closing_of(word)
        return int(word)

    def lets_in(self, word: int) -> bool:
        """Out of contact, only by an opening made here or seen in contact: the agent holds the lock that says so."""
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
                self.link.say(BUSY)
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
        self.link.say(IDLE)

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
            self.link.say(DRAINED)
        self._say_later_wants()
        close_all(self.old_locks)
        self.old_locks.clear()
        self.files.forget_joined()
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
                self.link.say(EVICTING)
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

    @property
    def memory_moves(self) -> bool:
        """Nothing but that is left of the present closing."""
        return self._draining == self.orders.gate and self._moves_until > self.clock.now

    def _hand_on(self) -> None:
        if not self.orders.hand_on or self.lockmode.active or len(self.devices) != 1 or not self.lockmode.alone:
            return
        flock(self.files.locks[0], fcntl.LOCK_UN)
        if not self.orders.hand_on:
            flock(self.files.locks[0], fcntl.LOCK_EX)

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
            self.link.send({"type": "unwants"})
        word = self.orders.gate
        if self.report.waiting and not is_open(word):
            self.want(word)

    def _say_wants(self) -> None:
        if self.contact != THERE or self.link.send({"type": "wants"}) <= 0:
            self.link.unsaid[WANTS] = None
            self.kick()

    def _say_later_wants(self) -> None:
        later, self._wants_later = self._wants_later, False
        if later and self.report.waiting:
            self._say_wants()

    # --- the end

    def locks_of(self, uuid: str) -> list[int]:
        """Its client's, and those by which it ran before it was given these, until it has drained."""
        return [self.files.locks[self.devices.index(uuid)], *self.old_locks]

    @property
    def descriptors(self) -> int:
        """How many it has open, its socket aside."""
        own = 5 + len(self.files.locks)  # mmap has one of its own of either page
        return own + self.files.joined + self.relay.waits + len(self.old_locks) + len(self.link.arrived)

    def die(self) -> None:
        """Its work on the device ends with it; the kernel closes what it had open, record locks first."""
        self.alive = False
        self.program.die()
        self._steps = None
        self.host.forget_lock_waiter(self)
        self.relay.close()
        close_all(self.old_locks)
        close_all(self.link.arrived)
        self.files.close()
        self.orders = self.report = None
        if self.link.connection:
            self.link.connection.close()
