"""Process of a simulated host, with the compiled agent rule.

A process takes `drains_in` seconds to drain. A process with a `peer` drains only after the peer has passed the gate, as
in a collective whose other half is still to come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from jupyter_gpushare.agent import rule
from jupyter_gpushare.agent.rule import ffi, native
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev

GATES = ("closed", "open", "closing", "step", "leaving")  # by phase
CLOSED, OPEN, CLOSING, STEP, LEAVING = GATES
NEVER = (1 << 64) - 1
POLL_SECONDS = 0.001  # between polls for the end of a drain


def ns(seconds: float | None) -> int:
    return round(seconds * 1e9) if seconds else 0


class LockingHost(Protocol):
    """The part of the host that a process needs: the time, the other processes and the locks."""

    now: float

    def siblings_of(self, process: SimulatedProcess) -> list[SimulatedProcess]: ...

    def enter(self, process: SimulatedProcess, devices: Sequence[str], turn: int, join: bool) -> bool: ...

    def leave(self, process: SimulatedProcess, turn: int) -> None: ...


class SimulatedProcess:
    """A process. `busy`: it waits at the gate again as soon as the gate closes. `waits`: a thread waits there now.

    In each of its next `collectives` openings, the process submits work that ends only after `peer` has passed the gate
    again.
    """

    def __init__(self, number: int, client: str, devices: tuple[str, ...], drains_in: float, busy: bool) -> None:
        self.number, self.client, self.devices, self.drains_in, self.busy = number, client, devices, drains_in, busy
        self.peer: SimulatedProcess | None = None
        self.collectives = 0
        self.waits = False
        self.moving_to = ""  # waits for a turn that includes this device, and stays in that turn
        self.is_moved_by_driver = False
        self.hibernated = 0  # bytes that have left the device with the process
        self.alive = True
        self.stopped = False
        self.openings = 0
        self.entered: tuple[str, ...] = ()  # the devices that the process has locked
        self.needs_opening = 0  # the opening of its peer that its submitted work waits for
        self.drained_at = 0.0
        self.next_step_at = float("inf")
        self._table = list(devices)  # the bits of a permit's devices
        self._agent: Any = ffi.new("struct agent *")
        self._inputs: Any = ffi.new("struct agent_inputs *")
        self._outputs: Any = ffi.new("struct agent_outputs *")
        self._reported_phase = (0, 0)  # phase and turn as last reported to the scheduler
        self._reported_waiting = False
        self._reported_evicting = False

    @property
    def gate(self) -> str:
        """Phase of the process, as a word of `GATES`."""
        return GATES[self._agent.report.phase]

    @property
    def turn(self) -> int:
        return int(self._agent.report.turn)

    @property
    def is_open(self) -> bool:
        return bool(self._agent.gate)

    @property
    def is_in_turn(self) -> bool:
        return self.gate != CLOSED

    @property
    def was_refused(self) -> bool:
        """True if a lock refused the process's entry under its last permit."""
        return bool(self._agent.report.refused_entries)

    def adopt_turn(self, turn: int, phase: str, now: float) -> None:
        """Take over a turn that the process entered under an earlier coordinator."""
        report = self._agent.report
        report.turn, report.phase, report.entered_ns = turn, GATES.index(phase), ns(now)
        self._agent.gate = phase == OPEN
        self._reported_phase = (report.phase, turn)

    def connect_after_move(self, number: int) -> None:
        """Begin a new connection, under another number, as a process does that has moved to its first device."""
        self.number, self._table = number, list(self.devices)
        self._inputs.permit = ffi.new("struct gpushare_permit *")[0]
        self._reported_waiting = False
        native().agent_new_connection(self._agent)

    def write_permit(self, permit: cmd.Permit) -> None:
        self._table = [*self._table, *(uuid for uuid in permit.devices if uuid not in self._table)]
        page = self._inputs.permit
        page.turn, page.epoch, page.deadline_ns = permit.turn, permit.epoch, ns(permit.deadline)
        page.devices = sum(1 << self._table.index(uuid) for uuid in permit.devices)
        page.flags = permit.may | permit.relieved << 1 | permit.contended << 2

    def ring(self) -> None:
        """Let the next step try to enter the turn, as after a ring of a bell."""
        self._agent.next_try = 0

    def step(self, host: LockingHost) -> float | None:
        """Run the agent rule until it waits, and return the time of its next step, or None if it has none."""
        tried = 0
        for _ in range(100):
            self._fill_inputs(host, tried)
            native().agent_step(self._agent, self._inputs, self._outputs)
            tried = self._act(host)
            if not tried and self._outputs.wake_at > ns(host.now):
                break
        else:
            raise AssertionError(f"process {self.number} steps for ever")
        due = self._outputs.wake_at / 1e9 if self._outputs.wake_at != NEVER else None
        if self.gate == CLOSING:
            drained_at = max(self.drained_at, host.now + POLL_SECONDS)
            return drained_at if due is None else min(max(due, host.now + 1e-9), drained_at)
        return due

    def _fill_inputs(self, host: LockingHost, tried: int) -> None:
        given = self._inputs
        given.now, given.tried, given.bell = ns(host.now), tried, 0
        given.waiting = self.waits or (bool(self.moving_to) and self.gate == CLOSED)
        given.moving = self.gate == LEAVING and bool(self.moving_to) and self.moving_to in self.entered
        given.polled = 0
        if self.gate == CLOSING:
            given.polled = rule.QUIET if self._is_quiet(host.now) else rule.BUSY
        closing = [sibling for sibling in host.siblings_of(self) if sibling.gate in (CLOSING, STEP)]
        given.closing_siblings = len(closing)
        since = min(((sibling._agent.report.closed_ns, sibling.turn) for sibling in closing), default=(0, 0))
        given.sibling_since, given.sibling_turn = since
        given.client_devices = (1 << len(self._table)) - 1
        permitted = given.permit.devices
        is_for_move = self.moving_to in self._table and permitted >> self._table.index(self.moving_to) & 1
        given.own_devices = permitted if is_for_move else (1 << len(self.devices)) - 1

    def _is_quiet(self, now: float) -> bool:
        if now < self.drained_at:
            return False
        return not (self.peer and self.peer.alive and self.peer.openings < self.needs_opening)

    def _act(self, host: LockingHost) -> int:
        found, acts = self._outputs, self._outputs.acts
        if acts & rule.LEAVE:
            host.leave(self, found.turn)
        if acts & rule.CLOSE:
            self.drained_at = host.now + self.drains_in
            if self.busy:
                self.waits = True
        if acts & rule.WAKE and self.is_open and not self.moving_to:
            self.openings += self.waits or not self.openings
            self.waits = False
            if self.peer and self.collectives:
                self.collectives -= 1
                self.needs_opening = self.peer.openings + 1
        if not acts & rule.ENTER:
            return 0
        if self.hibernated and not self.moving_to:
            return rule.REFUSED
        devices = [self._table[bit] for bit in range(len(self._table)) if found.devices >> bit & 1]
        return rule.ENTERED if host.enter(self, devices, found.turn, bool(acts & rule.JOIN)) else rule.REFUSED

    def reports(self, now: float) -> Iterator[ev.Event]:
        """Yield the changes since the last call that the edge reads on the process's page, as events."""
        report = self._agent.report
        (phase, turn), self._reported_phase = self._reported_phase, (report.phase, report.turn)
        if self._reported_phase != (phase, turn):
            if phase and (not report.phase or report.turn != turn):
                closed = report.closed_ns / 1e9 if report.closed_ns and report.turn == turn else None
                yield ev.TurnLeft(self.number, turn, closed)
                phase = 0
            if report.phase and not phase:
                yield ev.TurnEntered(self.number, report.turn, now)
            if GATES[report.phase] == CLOSING and GATES[phase] in (CLOSED, OPEN):
                yield ev.GateClosed(self.number, report.turn, now)
        evicting, self._reported_evicting = self._reported_evicting, bool(self._outputs.evicting)
        if self._reported_evicting and not evicting:
            yield ev.EvictionStarted(self.number)
        waiting = self.gate != OPEN and (self.waits or (bool(self.moving_to) and self.gate == CLOSED))
        if waiting != self._reported_waiting:
            self._reported_waiting = waiting
            yield (ev.GateWaitStarted if waiting else ev.GateWaitEnded)(self.number)
