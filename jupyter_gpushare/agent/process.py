"""Edge around the compiled agent rule in Python, in the place of native/shim/agent/agent.c.

Pages, lock files and bells are real, so the Linux kernel's locks exclude processes from each other's turns.
Each simulated process has open file descriptions of its own.
A subclass provides the time, the connections and the work on the device.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from random import Random
from typing import Any

from ..wire.page import CLOSING, CONTENDED, FIRST_TURN, LEAVING, OUT, RELIEVED, STEP
from . import rule as rules
from .link import CONNECTED, Connection, Link
from .lock_files import LockFiles
from .pages import ClientPage, Page
from .rule import ffi

MS_NS = 1_000_000
SECOND_NS = 1000 * MS_NS
MAX_SIBLING_SILENCE_SECONDS = 2  # a sibling that has not written its slot for longer has ended or is stopped
MAX_PAUSE_NS = 1000 * MS_NS  # between two steps
RING_DELAY_NS = MS_NS  # after a handoff, because the coordinator would occupy the processor of the next program
NEVER = (1 << 64) - 1
MAX_STEPS = 20  # without a pause between them


class Process:
    """Process of a client. `gate` and `opening` are its gate word; `waiting` counts its threads at the gate."""

    def __init__(
        self,
        client: str,
        devices: tuple[str, ...],
        *,
        pid: int = 0,
        token: str,
        quota: str = "",
        memory: int = 8 << 30,
        random: Random | None = None,
        rule: Any = None,
    ) -> None:
        self.client_name, self.devices, self.pid, self.token, self.quota = client, devices, pid, token, quota
        self.memory = memory
        self.random = random or Random()
        self.rule = rule or rules.native()
        self.locks = LockFiles(self.rule)
        self.page = Page()
        self.client_page = ClientPage.new(self.random.randrange(FIRST_TURN, 1 << 62), devices)
        self.slot = 0
        self.link = Link(self)
        self.gate, self.opening = rules.CLOSED_GATE, 0
        self.waiting = 0
        self.submissions = 0
        self.polled_bell = ""  # UUID of the device with the bell that the process polls
        self.wake_at = 0
        self._next_client_page: ClientPage | None = None  # page that replaces `client_page` when the process is out
        self._agent = ffi.new("struct agent *")
        self._in = ffi.new("struct agent_inputs *")
        self._out = ffi.new("struct agent_outputs *")
        self._take_permit(ffi.new("struct gpushare_permit *"))
        self._permit_is_torn = False
        self._polls_drain = self._shows_waiting = False
        self._ring_at = NEVER

    def __str__(self) -> str:
        return f"process {self.pid} of {self.client_name}"

    # --- for a subclass

    def now(self) -> int:
        """Return CLOCK_MONOTONIC nanoseconds."""
        raise NotImplementedError

    def connect(self) -> Connection | None:
        """Return a new connection to the coordinator, or None if no coordinator listens."""
        return None

    def is_quiet(self) -> bool:
        """Return whether no call is inside the gate and no submitted work is unfinished."""
        return True

    def poll_delay(self) -> int:
        """Return the nanoseconds between two checks for the end of the work or of the eviction."""
        return MS_NS // 2

    def on_drained(self) -> None:
        """Begin to evict memory, because the submitted work has finished."""

    def missing_bytes(self) -> int:
        """Return the bytes of memory that must be on the device before a call passes the gate."""
        return int(self.page.report.missing_bytes)

    def is_moving(self) -> bool:
        """Return whether memory that must be evicted before the turn ends is still resident."""
        return False

    def wake_threads(self) -> None:
        """Wake the threads at the gate."""

    def on_bell(self, uuid: str) -> None:
        """Wake the processes that poll this bell, because it rings."""

    def on_entered(self, turn: int) -> None:
        """Do what follows from entering the turn; the locks are held and the gate is still closed."""

    def on_leaving(self, turn: int) -> None:
        """Do what must precede the release of the locks."""

    def on_refused(self, message: dict[str, Any]) -> None:
        """Handle the coordinator's refusal of the process."""

    # --- the page and the client page

    @property
    def stepped_at(self) -> int:
        """The time of the last step in nanoseconds."""
        return int(self._in.now)

    @property
    def phase(self) -> int:
        return int(self._agent.report.phase)

    @property
    def turn(self) -> Any:
        """The rule's report about the turn."""
        return self._agent.report

    @property
    def permit(self) -> Any:
        """The last permit with a correct check, from the connection that was welcomed last."""
        return self._permit

    @property
    def is_without_coordinator(self) -> bool:
        """True if the process took turns without a coordinator at the last step."""
        return bool(self._out.without_coordinator)

    def new_page(self) -> None:
        """Make the page of a new connection and unmap the page before; the last permit stays valid."""
        before = self.page
        self.page = Page(before)
        before.close()

    def hello(self) -> dict[str, Any]:
        return {
            "type": "hello",
            "wire": 1,
            "pid": self.pid or os.getpid(),
            "client": self.client_name,
            "token": self.token,
            "quota": self.quota,
            "devices": [{"uuid": uuid, "name": "Simulated GPU", "memory": self.memory} for uuid in self.devices],
            "simulated": True,
        }

    def descriptors_of_hello(self) -> list[int]:
        return [self.page.descriptor, (self._next_client_page or self.client_page).descriptor]

    def join(self, descriptor: int) -> bool:
        """Keep a client page for the next step or welcome at which the process is out.

        Return False if the page lacks a device.
        """
        found = ClientPage(descriptor)
        if not set(self.devices) <= set(found.refresh_devices()):
            found.close()
            return False
        if self._next_client_page:
            self._next_client_page.close()
        self._next_client_page = found
        return True

    def on_welcome(self) -> None:
        """Take slot and permits from the coordinator that has answered hello, and discard the last permit."""
        self._take_permit(ffi.new("struct gpushare_permit *"))
        self.rule.agent_new_connection(self._agent)
        self._take_client_page()
        if not self._next_client_page:
            self._take_slot()

    def _take_client_page(self) -> None:
        if not self._next_client_page or self.phase != OUT:
            return
        self._clear_slot()
        self.client_page.close()
        self.client_page, self._next_client_page = self._next_client_page, None
        self._take_slot()

    def _take_slot(self) -> None:
        self._clear_slot()
        self.slot = self.page.control.slot % rules.CONSTANTS["GPUSHARE_SLOTS"]
        self.write_slot()

    def _clear_slot(self) -> None:
        self.client_page.slots[self.slot] = ffi.new("struct gpushare_slot *")[0]

    def write_slot(self) -> None:
        slot, turn = self.client_page.slots[self.slot], self._agent.report
        slot.allocated = self.page.report.allocated
        slot.turn, slot.since_ns, slot.phase = turn.turn, turn.closed_ns, turn.phase
        slot.seen = self._in.now // SECOND_NS

    # --- inputs

    def _read_permit(self) -> None:
        """Copy the permit from the page if its check is correct. Without a connection, the last permit stays valid."""
        found = self.page.permit_bytes()
        self._permit_is_torn = False
        if found == self.permit_bytes or self.link.state != CONNECTED:
            return
        copy = ffi.from_buffer("struct gpushare_permit *", found)
        self._permit_is_torn = not self.is_whole(copy)
        if not self._permit_is_torn:
            self._take_permit(copy)

    def _take_permit(self, permit: Any) -> None:
        self._in.permit = self._permit = ffi.new("struct gpushare_permit *", permit[0])[0]
        self.permit_bytes = bytes(ffi.buffer(permit))

    def is_whole(self, permit: Any) -> bool:
        return bool(permit.check == rules.check_of(permit[0], rules.PERMIT_WORDS))

    def _fill_inputs(self, now: int, tried: int) -> None:
        given, control, client = self._in, self.page.control, self.client_page.view
        phase, is_away = self.phase, bool(self.link.away_since)
        given.now, given.tried = now, tried
        given.quantum_ns, given.idle_release_ns = control.quantum_ns, control.idle_release_ns
        given.away_since = self.link.away_since
        given.client_turn, given.client_began = client.turn, client.entered_ns
        given.client_devices = (1 << min(client.device_count, 64)) - 1
        given.own_devices = self._own_bits()
        given.submissions, given.waiting = self.submissions, self.waiting
        given.missing_bytes = self.missing_bytes()
        polls = self._polls_drain or phase == CLOSING
        given.polled = rules.NOT_POLLED if not polls else rules.QUIET if self.is_quiet() else rules.BUSY
        given.moving = phase == LEAVING and not self._agent.keeps and self.is_moving()
        given.bell = bool(self.polled_bell) and self.locks.take_ring(self.polled_bell)
        given.client_in = (
            is_away and self.waiting > 0 and self.locks.has_others(self._uuids_of(given.client_devices), client.turn)
        )
        given.sibling_turn = given.sibling_since = given.closing_siblings = 0
        if self.waiting or self._agent.keeps or phase in (CLOSING, STEP):
            self._fill_siblings(given)

    def _fill_siblings(self, given: Any) -> None:
        phases = self.client_page.phases()
        if CLOSING not in phases and STEP not in phases:
            return
        devices = self.client_page.refresh_devices()
        for number, phase in enumerate(phases):
            if phase not in (CLOSING, STEP) or number == self.slot:
                continue
            slot = self.client_page.slots[number]
            turn, since = slot.turn, slot.since_ns
            ended = given.now // SECOND_NS > slot.seen + MAX_SIBLING_SILENCE_SECONDS
            if ended or turn < FIRST_TURN or not self.locks.has_others(devices, turn):
                continue
            given.closing_siblings += 1
            if not given.sibling_turn or since < given.sibling_since:
                given.sibling_turn, given.sibling_since = turn, since

    def devices_to_enter(self) -> list[str]:
        """Return the devices on which the process would enter its turn now."""
        bits = self._in.client_devices if self.is_without_coordinator else self._permit.devices
        return self._uuids_of(bits)

    def _own_bits(self) -> int:
        self.client_page.refresh_devices()
        return self.client_page.bits(self.devices)

    def _uuids_of(self, bits: int) -> list[str]:
        uuids = self.client_page.refresh_devices()
        return [uuids[number] for number in range(len(uuids)) if bits >> number & 1]

    # --- one step

    def step(self) -> Iterator[None]:
        """Read all inputs once and act on them. Yield where other processes may act; `wake_at` is the next step."""
        now = self.now()
        yield from self.link.step(now)
        tried = rules.NOT_TRIED
        for _ in range(MAX_STEPS):
            self._take_client_page()
            self._read_permit()
            now = self.now()
            self._fill_inputs(now, tried)
            self.rule.agent_step(self._agent, self._in, self._out)
            self._show_waiting(tried)
            tried = yield from self._carry_out(now)
            if tried == rules.NOT_TRIED and self._out.wake_at > now:
                break
        else:
            raise AssertionError(f"the agent rule asked {self} for another step without a pause {MAX_STEPS} times")
        if self._ring_at != NEVER:
            self._ring_coordinator(self._ring_at, self.now())
        self.wake_at = min(self._out.wake_at, self.link.next_step_at(), self._ring_at, now + MAX_PAUSE_NS)
        if self.phase == CLOSING or (self.phase == LEAVING and not self._agent.keeps):
            self.wake_at = min(self.wake_at, now + self.poll_delay())
        if self._permit_is_torn:
            self.wake_at = min(self.wake_at, now + MS_NS)

    def run_step(self) -> None:
        """Do one step without an interruption."""
        for _ in self.step():
            pass

    def _carry_out(self, now: int) -> Generator[None, None, int]:
        """Act on the rule's outputs and return the result of an attempt to enter."""
        out = self._out
        acts, turn = out.acts, out.turn
        if acts & rules.LEAVE:
            self.on_leaving(turn)
            self.locks.leave(turn)
            yield
        if acts & rules.BEGIN:
            self.client_page.view.entered_ns = now
        closes = out.gate == rules.CLOSED_GATE
        if closes:
            self.gate, self.opening = out.gate, out.opening
        self._write_report()
        yield
        if not closes:
            self.gate, self.opening = out.gate, out.opening
        self._polls_drain = bool(acts & rules.POLL)
        if acts & rules.DRAINED:
            self.on_drained()
        if acts & rules.RING:
            for uuid in self._uuids_of(out.devices):
                self.locks.ring(uuid)
                self.on_bell(uuid)
        if acts & rules.WAKE:
            self.wake_threads()
        if acts & rules.CHANGED:
            self._ring_coordinator(now + RING_DELAY_NS if self._is_handoff() else now, now)
        self._choose_bell()
        yield
        if not acts & rules.ENTER:
            return rules.NOT_TRIED
        return self._try_to_enter(turn, bool(acts & rules.JOIN))

    def _write_report(self) -> None:
        report = self.page.report
        report.turn = self._out.report
        report.waiting, report.idle, report.evicting = self.waiting, self._out.idle, self._out.evicting
        self.write_slot()

    def _show_waiting(self, tried: int) -> None:
        """Show on byte 0 of the lock file that a thread waits, after a refused attempt to enter.

        The coordinator of the client that has the device then ends that client's turn.
        """
        waits = self.is_without_coordinator and self.waiting > 0 and self.phase == OUT
        shows = waits and (self._shows_waiting or tried == rules.REFUSED)
        if shows != self._shows_waiting:
            self._shows_waiting = shows
            self.locks.show_waiting(self.devices, shows)

    def _is_handoff(self) -> bool:
        """Return whether the next client is about to get the device, or this process has just got it from another."""
        if self._out.gate == rules.CLOSED_GATE:
            return bool(self._permit.flags & RELIEVED)
        return bool(self._out.acts & rules.WAKE and self._permit.flags & CONTENDED)

    def _ring_coordinator(self, at: int, now: int) -> None:
        self._ring_at = NEVER if now >= at else min(self._ring_at, at)
        if now >= at:
            self.link.ring()

    def _choose_bell(self) -> None:
        self.polled_bell = ""
        if self._out.listen and (found := self._uuids_of(self._out.devices)):
            self.polled_bell = found[0]

    def _try_to_enter(self, turn: int, join: bool) -> int:
        devices = self._uuids_of(self._out.devices)
        first = not self.locks.has_others(devices, turn)
        if not self.locks.enter(devices, turn, join):
            return rules.REFUSED
        self.on_entered(turn)
        return rules.ENTERED_FIRST if first else rules.ENTERED

    # --- the end

    @property
    def descriptors(self) -> int:
        """The number of open files without the connection; each mapping has one besides its memfd."""
        return 4 + self.locks.descriptors + self.link.descriptors + 2 * bool(self._next_client_page)

    def close(self) -> None:
        """End the process as the Linux kernel does: this frees the locks and writes no report."""
        self.locks.close()
        self.link.close()
        if self._next_client_page:
            self._next_client_page.close()
        self.page.close()
        self.client_page.close()
