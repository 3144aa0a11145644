"""Turns without a coordinator, by the lock files: native/shim/lockmode.c, function by function."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from jupyter_gpushare.coordinator.neighbours import FLOCK

from .clock import NEVER

if TYPE_CHECKING:
    from .agent import Agent

SLOTS = 64
CONTACT_BYTE = SLOTS  # plus the slot
TURN_BYTE = 2 * SLOTS
GRACE = 2.0
ASK = 0.005
CHANCE = 0.02
STUCK = 0.1
LEAST_QUANTUM = 0.01
SLICE = 0.05
STEPS = 16
AGAIN = 0.02
OPEN, CLOSING, STEP = 1, 2, 3


class LockMode:
    """Of one process. Also its record locks, which it holds in either mode."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.active = False
        self._turn = False  # our gate is open, or draining, by a turn that ends here
        self._holds = self._in_contact = False
        self._slot = self._contact_slot = 0
        self._deadline = self._closed_at = self._next_try = 0.0
        self._waited_since: float | None = None
        self._slices = self._slices_of = 0
        self._others = 0
        self._helped = self._waits = False

    # --- record locks

    def hold(self, open_now: bool) -> None:
        files, slot = self._agent.files, self._agent.orders.slot % SLOTS
        if self._holds and (not open_now or slot != self._slot):
            files.record_lock(False, self._slot)
        self._slot = slot
        self._holds = open_now and files.record_lock(True, slot)

    def contact(self, in_contact: bool) -> None:
        files, slot = self._agent.files, self._agent.orders.slot % SLOTS
        if self._in_contact and (not in_contact or slot != self._contact_slot):
            files.record_lock(False, CONTACT_BYTE + self._contact_slot)
        self._contact_slot = slot
        self._in_contact = in_contact and files.record_lock(True, CONTACT_BYTE + slot)

    def _another_holds(self, first: int) -> bool:
        return self._agent.files.held_by_another(first, first + SLOTS) < first + SLOTS

    @property
    def alone(self) -> bool:
        """No other process of the client has its gate open."""
        return not self._another_holds(0)

    def _others_running(self) -> int:
        count = at = 0
        while (at := self._agent.files.held_by_another(at, SLOTS)) < SLOTS:
            at += 1
            count += 1
        return count

    # --- the devices' locks

    def _order(self) -> list[int]:
        return sorted(range(len(self._agent.devices)), key=lambda number: self._agent.devices[number])

    def _unlock_devices(self) -> None:
        for number in self._order():
            self._agent.files.flock(number, fcntl.LOCK_UN)

    def _lock_devices(self) -> bool:
        taken: list[int] = []
        for number in self._order():
            if not self._agent.files.flock(number, fcntl.LOCK_EX):
                for other in taken:
                    self._agent.files.flock(other, fcntl.LOCK_UN)
                return False
            taken.append(number)
        return True

    def _say_waits(self, waits: bool) -> None:
        self._waits = waits
        kind = fcntl.F_RDLCK if waits else fcntl.F_UNLCK
        for lock in self._agent.files.locks:
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0))

    # --- turns

    def _open_gate(self, deadline: float, how: int) -> None:
        agent = self._agent
        epoch = ((agent.gate_word() >> 2) + 1) % (1 << 29)
        self._turn = True
        self._deadline = deadline
        agent.orders.deadline_ns = int(deadline * 1e9)
        agent.open_gate(epoch << 2 | how)

    def _patience(self) -> float:
        turn = self._agent.files.client.turn_epoch
        if self._slices_of != turn:
            self._slices = 0
        self._slices_of = turn
        whole = self._slices // (STEPS + 1)
        return AGAIN if self._helped or self._slices % (STEPS + 1) else STUCK * (1 << min(whole, 5))

    def _open_slice(self, now: float, others: int) -> None:
        step = self._slices % (STEPS + 1) < STEPS
        self._others = others
        self._helped = False
        self._slices += 1
        self._open_gate(now + (AGAIN if step else SLICE), STEP if step else OPEN)

    def _close_gate(self, now: float) -> None:
        self._closed_at = now
        self._waited_since = None
        self._others = 0
        word = self._agent.gate_word()
        self._agent.orders.gate = word & ~3 | CLOSING

    def _leave(self, now: float) -> bool:
        files = self._agent.files
        if not files.record_lock(True, TURN_BYTE):
            return False
        self.hold(False)
        if not self._another_holds(0):
            files.client.turn_began_ns = 0
            self._unlock_devices()
        files.record_lock(False, TURN_BYTE)
        self._turn = False
        self._next_try = now + CHANCE
        return True

    def _quantum(self) -> float:
        return max(self._agent.orders.quantum_ns / 1e9, LEAST_QUANTUM)

    def _try_for_turn(self, now: float) -> None:
        files = self._agent.files
        self._next_try = now + ASK
        if not files.record_lock(True, TURN_BYTE):
            return
        if self._another_holds(0):
            end = files.client.turn_began_ns / 1e9 + self._quantum()
            stuck = now > max(self._closed_at, end) + self._patience()
            if now < end or stuck:
                self.hold(True)
            if now < end:
                self._open_gate(end, OPEN)
            elif stuck:
                self._open_slice(now, self._others_running())
        elif self._lock_devices():
            files.client.turn_began_ns = int(now * 1e9)
            files.client.turn_epoch += 1
            self.hold(True)
            self._open_gate(now + self._quantum(), OPEN)
        files.record_lock(False, TURN_BYTE)

    def _enter(self, now: float) -> None:
        agent, files = self._agent, self._agent.files
        self.active = True
        word = agent.orders.gate
        agent.report.mode = 1
        agent.orders.launch_rate = agent.orders.spacing_ppm = 0
        agent.host.tell(f"{agent}: no coordinator, turns by the lock files")
        self._turn = True
        if not word & 1:
            self._closed_at = now
            return
        if not files.locked() and not self._lock_devices():
            self._deadline = now
        elif files.record_lock(True, TURN_BYTE):
            if not files.client.turn_began_ns:
                files.client.turn_began_ns = int(now * 1e9)
            self._deadline = files.client.turn_began_ns / 1e9 + self._quantum()
            files.record_lock(False, TURN_BYTE)
        else:
            self._deadline = now + self._quantum()
        agent.orders.deadline_ns = int(self._deadline * 1e9)

    def _look_again(self, now: float) -> float:
        return now + 0.001 if self._others and now + 0.001 < self._deadline else self._deadline

    def step(self, now: float) -> float:
        """When the agent is away from any coordinator. Returns when to look again."""
        agent = self._agent
        begin = (now if agent.link.away_since is None else agent.link.away_since) + GRACE
        if now < begin:
            return begin
        if not self.active:
            self._enter(now)
        word = agent.gate_word()
        waited_for = bool(agent.report.waiting)
        if word & 1:
            return self._at_open_gate(now)
        if word & 3 == CLOSING and not agent.drained_of(word):
            if not waited_for:
                self._waited_since = None
                return NEVER
            self._waited_since = now if self._waited_since is None else self._waited_since
            due = self._waited_since + self._patience() * (4 if self._slices else 1)
            if now < due:
                return due
            self._open_slice(now, 0)
            return self._deadline
        if self._turn and not self._leave(now):
            return now + 0.001
        if not waited_for:
            if self._waits:
                self._say_waits(False)
            return NEVER
        if now >= self._next_try:
            self._try_for_turn(now)
            self._say_waits(not self._turn)
        return self._look_again(now) if agent.orders.gate & 1 else self._next_try

    def _at_open_gate(self, now: float) -> float:
        others = self._others_running() if self._others else 0
        if others < self._others:
            self._slices = 0
            self._helped = True
            self._deadline = self._deadline if others else now
        if now < self._deadline:
            return self._look_again(now)
        self._close_gate(now)
        return now

    def idle(self, now: float) -> bool:
        if self.active:
            self._close_gate(now)
        return self.active

    def ready(self, now: float) -> bool:
        """Before a hello. A client that does not run must not keep the devices locked."""
        if self._agent.running:
            return True
        if self._turn:
            return self._leave(now)
        if not self._another_holds(0) and not self._another_holds(CONTACT_BYTE):
            self._unlock_devices()
        return True

    def end(self) -> None:
        """A coordinator is there. The client page may be another by now, the slot too."""
        self.active = self._turn = False
        self._next_try = 0.0
        self._say_waits(False)
        self._agent.report.mode = 0
        self._agent.files.client.turn_began_ns = 0
        self.hold(self._holds and self._agent.running)
        self.contact(True)
