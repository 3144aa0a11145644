"""Process that the simulated driver moves to other devices and hibernates.

The edge is that of native/shim/coordinator/move_request.c, native/shim/devices/move.c and hibernation.c. Random choices
about moves come from a generator of their own, so that episodes without moves keep their seeds.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from jupyter_gpushare.agent import rule as rules
from jupyter_gpushare.agent.link import Link
from jupyter_gpushare.agent.pages import ClientPage
from jupyter_gpushare.agent.rule import ffi
from jupyter_gpushare.wire.page import CLOSING, LEAVING, MAY, OUT

from ..support.simulated_process import SimulatedProcess
from ..support.turn_audit import Violation

if TYPE_CHECKING:
    from ..support.turn_audit import SimulatedClient, TurnAudit

MAX_ROOM_WAIT_SECONDS = 30.0  # in the turn, until the coordinator starts the move
ROOM_POLL_NS = 50_000_000  # between two looks at the end of that wait
DRIVER_SECONDS = 0.3  # on average, of the driver's calls for a move
REFUSAL_PROBABILITY = 0.25  # of the driver
HIDDEN_WAIT_PROBABILITY = 0.2  # of a hibernated program that waits for the driver without a hook


class MovingLink(Link):
    """Link whose process takes the requests of moves. A request ends with its connection."""

    def __init__(self, process: MovingProcess) -> None:
        super().__init__(process)
        self._moving_process = process

    def _handle_message(self, message: dict[str, Any], now: int) -> None:
        if message["type"] in ("move", "move_start", "move_cancel"):
            self._moving_process.on_move_message(message)
        else:
            super()._handle_message(message, now)

    def disconnect(self) -> None:
        self._moving_process.withdraw()
        super().disconnect()


class MovingProcess(SimulatedProcess):
    """Process of a client on one device, with the simulated driver's checkpoints."""

    def __init__(self, host: TurnAudit, client: SimulatedClient, pid: int, devices: tuple[str, ...]) -> None:
        self._move_random = Random(pid)
        self._there = ""  # device of the request; empty: there is no request
        self._hibernates = self._may_start = False
        self._bytes = 0  # that leave the device with a process that hibernates
        self._counts_as_waiting = False
        self._was_out = False  # the request came before the turn
        self._permitted = 0  # devices of the last permit for a move
        self._turn_is_for_move = False  # until the turn ends
        self._has_moved = False
        self._drained_at = 0.0
        self._driver_ends_at = 0.0  # of the driver's calls; 0: the driver makes none
        self._wants_return = False
        super().__init__(host, client, pid, devices)
        self.link = MovingLink(self)

    def hello(self) -> dict[str, Any]:
        return {**super().hello(), "hibernated": self.hibernated}

    # --- the request

    def on_move_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "move_start":
            self._may_start, self._bytes = bool(self._there), message.get("bytes", 0)
            return
        self.withdraw()
        if message["type"] == "move":
            self._there, self._hibernates = message["devices"][0], message.get("hibernates", False)

    def withdraw(self) -> None:
        if not self._driver_ends_at:  # the agent's thread, which handles the connection, is in the driver until then
            self._there, self._may_start = "", False

    def _answer(self, error: str) -> None:
        self.host.log_event(f"{self} answers the move to {self._there}: {error or 'done'}, {self.hibernated} away")
        there = self._there
        self.withdraw()
        self.link.send({"type": "moved", "device": there, "error": error, "hibernated": self.hibernated})

    def _poll_request(self) -> None:
        """Answer a request that needs no turn."""
        if not self._there:
            return
        is_own = self._there == self.devices[0]
        if is_own and self._hibernates == bool(self.hibernated):
            self._answer("")
        elif self.hibernated and not is_own:
            self._answer("the process is hibernated")
        elif not self.hibernated and not self.program.profile.uses_swap:
            self._answer("the process has memory mode unified")

    def _set_waiting(self) -> None:
        """Count a request, and the wish to return, as a thread at the gate while the process is out."""
        is_out, is_requested = self.phase == OUT, bool(self._there)
        waits = is_out and (is_requested or (bool(self.hibernated) and self._wants_return))
        self._was_out = is_requested and (is_out or self._was_out)
        self._turn_is_for_move = self._turn_is_for_move and not is_out
        if is_out:
            self._may_start = False
        if waits != self._counts_as_waiting:
            self._counts_as_waiting = waits
            self.waiting += 1 if waits else -1

    # --- the turn

    @property
    def may_allocate(self) -> bool:
        return not self.hibernated and not (self.phase != OUT and self._turn_is_for_move)

    @property
    def may_enter(self) -> bool:
        if self.phase == OUT and (self._is_refused_entry or self._permit_is_over(self._permit.devices)):
            return False
        return super().may_enter

    @property
    def _is_refused_entry(self) -> bool:
        return bool(self.hibernated) and not self._there

    def _own_bits(self) -> int:
        permitted = self._permit.devices
        return permitted if self._was_out and self._there and self._includes(permitted) else super()._own_bits()

    def _includes(self, devices: int) -> bool:
        return self._there in self._uuids_of(devices)

    def _permit_is_over(self, permitted: int) -> bool:
        if self._there and self._includes(permitted):
            self._permitted = permitted
        elif permitted != self._permitted:
            self._permitted = 0
        return bool(not self._there and self._permitted and permitted != super()._own_bits())

    def _is_in_move_turn(self) -> bool:
        is_closed = self._was_out or bool(self.hibernated)  # the gate, since the turn began
        found = bool(self._there) and is_closed and self._includes(self._agent.devices)
        self._turn_is_for_move = self._turn_is_for_move or found
        if not found:
            self._drained_at = 0.0
        return found

    def _fill_inputs(self, now: int, tried: int) -> None:
        self._poll_request()
        self._set_waiting()
        super()._fill_inputs(now, tried)
        given, phase = self._in, self.phase
        given.permit = self._permit
        if phase == OUT:
            is_over = self._permit_is_over(self._permit.devices)
        else:
            is_over = self._turn_is_for_move and not self._is_in_move_turn() and not self.hibernated
        if is_over:
            given.permit.flags &= ~MAY
        if self.hibernated and phase == CLOSING:
            given.polled = rules.QUIET
        if phase == LEAVING and not self._agent.keeps:
            given.moving = self._is_moving_memory() or self._is_move_due()

    def _is_moving_memory(self) -> bool:
        if self.hibernated:
            return False
        if self._is_in_move_turn() and not self.is_moving():
            self._moves_until = self.clock.now + self.program.evict()
        return self.is_moving()

    def poll_delay(self) -> int:
        """Return the delay of the next poll; a message ends the wait for the start of a move."""
        return ROOM_POLL_NS if self._drained_at else super().poll_delay()

    def on_drained(self) -> None:
        if not self.hibernated:
            super().on_drained()

    def _is_move_due(self) -> bool:
        """Return whether the turn goes on for the move, and begin the driver's part of the move as soon as it may."""
        now = self.clock.now
        if not self._is_in_move_turn():
            return False
        if not self._drained_at:
            self._drained_at = now
            self.link.ring()  # the report shows that the movable memory has left
        if self._may_start:
            self._drained_at, self._may_start = 0.0, False
            if problem := self._obstacle():
                self._answer(problem)
                return False
            self._driver_ends_at = now + self._move_random.expovariate(1 / DRIVER_SECONDS)
            self._check_turn()
            return True
        if now >= self._drained_at + MAX_ROOM_WAIT_SECONDS:
            self._drained_at = 0.0
            self._answer("no room has come on the other device")
            return False
        return True

    def _obstacle(self) -> str:
        """Return why the process cannot hibernate now; empty: it can, or it moves."""
        if not self._hibernates or self.hibernated:
            return ""
        requests = self.program.memory_requests
        is_at_work = requests.is_waiting or self.program.restore_requests.waiting_since or self.page.report.resident
        return "the main thread of the program is at work" if is_at_work else ""

    def _carry_out(self, now: int) -> Generator[None, None, int]:
        is_for_move = self._out.report.phase != OUT and (self._is_in_move_turn() or self._turn_is_for_move)
        if is_for_move or self.hibernated:
            self._out.gate = rules.CLOSED_GATE
        tried = yield from super()._carry_out(now)
        if self._has_moved and self.phase == OUT:
            self._connect_after_move()
        return tried

    def _try_to_enter(self, turn: int, join: bool) -> int:
        return rules.REFUSED if self._is_refused_entry else super()._try_to_enter(turn, join)

    # --- the driver

    def _continue_step(self) -> None:
        """Step, but not while the agent's thread is in a call of the driver."""
        if self.clock.now < self._driver_ends_at:
            self._handle = self.clock.schedule(self._driver_ends_at, self, self._continue_step)
        else:
            super()._continue_step()

    def step(self) -> Iterator[None]:
        if self._driver_ends_at:
            self._driver_ends_at = 0.0
            self._check_turn()
            self._end_driver_calls()
        yield from super().step()

    def _check_turn(self) -> None:
        """Check that the process has the device of its move, and that no other process works there."""
        (host, turn) = self.host, self.turn.turn
        uuids = set(self._uuids_of(self._agent.devices))
        if self._there not in uuids:
            raise Violation(f"{self} moves to {self._there} in a turn on {sorted(uuids)}")
        for uuid in uuids:
            if not host.has_lock(self, uuid):
                raise Violation(f"{self} moves to {self._there} without being in its turn on {uuid} by the lock")
        for other in host.agents():
            if other is not self and other.is_working and uuids & set(other.devices):
                raise Violation(f"{self} moves to {self._there} in turn {turn:#x}, while {other.describe()}")

    def _end_driver_calls(self) -> None:
        is_refused = self._move_random.random() < REFUSAL_PROBABILITY
        if self.hibernated:  # the coordinator ensures room, so the driver restores the process
            self.hibernated, self._wants_return = 0, False
            self.host.moves["returned"] += 1
            self._answer("")
        elif self._hibernates:
            if is_refused:
                self.host.moves["refused"] += 1
                self._answer("the driver does not checkpoint the process now")
            else:
                self._begin_hibernation()
                self._answer("")
        elif not is_refused:
            self.host.change_devices(self, (self._there,))
            self.host.moves["moved"] += 1
            self._has_moved = True
            self._answer("")
        else:
            self.host.moves["refused"] += 1
            if self.devices[0] not in self._uuids_of(self._agent.devices):
                self._begin_hibernation()
            self._answer("the driver could not move the process")

    def _begin_hibernation(self) -> None:
        self.hibernated = max(1, self._bytes)
        self.host.moves["hibernated"] += 1
        if self._move_random.random() < HIDDEN_WAIT_PROBABILITY:
            delay = 1.0 + self._move_random.expovariate(0.5)
            self.clock.schedule(self.clock.now + delay, self, self._wait_in_driver)

    def _wait_in_driver(self) -> None:
        """Wait in a call of the driver without a hook, which the agent finds by the place of the main thread."""
        if self.hibernated:
            self._wants_return = True
            self.wake()

    def _connect_after_move(self) -> None:
        """Connect again with a client page that has the new device."""
        self._has_moved = False
        self._take_permit(ffi.new("struct gpushare_permit *"))
        if self._next_client_page:
            self._next_client_page.close()
            self._next_client_page = None
        self._clear_slot()
        before = self.client_page
        self.client_page = ClientPage.new(before.view.turn, self.devices)
        self.client_page.view.entered_ns = before.view.entered_ns
        before.close()
        self.slot = 0
        self.write_slot()
        self.link.disconnect()
