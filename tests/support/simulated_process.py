"""Process in virtual time: its edge and its program.

The steps of the edge yield between two stores that other processes can see.
There the host may preempt the process for a while, stop it or kill it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from jupyter_gpushare.agent.link import CONNECTED, Connection
from jupyter_gpushare.agent.process import Process
from jupyter_gpushare.agent.rule import PHASES, ffi
from jupyter_gpushare.wire.page import FIRST_TURN, MAY, OUT, RELIEVED

from .simulated_program import SimulatedProgram
from .virtual_clock import EventOwner, TimerHandle

if TYPE_CHECKING:
    from .turn_audit import SimulatedClient, TurnAudit


class SimulatedProcess(Process, EventOwner):
    """Process of a client in virtual time."""

    hibernated = 0  # bytes that have left the device with the process
    may_allocate = True  # False while the driver moves the process, or while the process is hibernated

    def __init__(self, host: TurnAudit, client: SimulatedClient, pid: int, devices: tuple[str, ...]) -> None:
        EventOwner.__init__(self)
        self.host, self.clock, self.client = host, host.clock, client
        random = host.fork_random()
        Process.__init__(
            self, client.name, devices, pid=pid, token=client.token, quota=client.quota, random=random, rule=host.rule
        )
        self.memory = host.memory
        self.program = SimulatedProgram(self)
        self._handle: TimerHandle | None = None
        self._steps: Iterator[None] | None = None
        self._is_step_requested = False
        self._moves_until = 0.0
        host.on_started(self)
        self.wake()

    def describe(self) -> str:
        """Return a description of the state for a report."""
        turn = self.turn
        return (
            f"{self} on {', '.join(self.devices)}: {self.link.state}, {PHASES[turn.phase]} {turn.turn:#x} by epoch "
            f"{turn.epoch}, permit {self.permit.turn:#x} {self.permit.epoch} {self.permit.flags}, "
            f"without coordinator {self.is_without_coordinator}, waiting {self.waiting}, "
            f"inside {self.program.inside}, works {self.is_working}, stopped {self.stopped}"
        )

    # --- steps

    def wake(self) -> None:
        """Step as soon as the simulated operating system schedules the process."""
        self._schedule_step(self.clock.now + self.random.expovariate(8000.0))

    def _schedule_step(self, due: float) -> None:
        if not self.alive:
            return
        if self._steps is not None:
            self._is_step_requested = True
            return
        if self._handle is not None and self._handle.callback is not None:
            if self._handle.due <= due:
                return
            self._handle.cancel()
        self._handle = self.clock.schedule(due, self, self._continue_step)

    def _continue_step(self) -> None:
        if self._steps is None:
            self._steps = self.step()
        for _ in self._steps:
            if self.host.is_preempted(self):
                pause = self.random.expovariate(self.random.choice((5000.0, 200.0)))
                self.clock.schedule(self.clock.now + pause, self, self._continue_step)
                return
        self._steps = None
        again, self._is_step_requested = self._is_step_requested, False
        if again:
            self.wake()
        else:
            self._schedule_step(max(self.clock.now + 2e-5, self.wake_at / 1e9))

    def step(self) -> Iterator[None]:
        yield from super().step()
        if self.phase == OUT:
            self.program.evict()
        self.host.on_stepped(self)

    def _write_report(self) -> None:
        self.program.memory_requests.report_residency(self._out.report.phase != OUT)
        super()._write_report()

    def change_waiting(self, change: int) -> None:
        """Change the number of threads that wait at the gate."""
        self.waiting += change
        if self.waiting == max(change, 0):
            self.wake()

    # --- methods that the edge calls

    def now(self) -> int:
        return round(self.clock.now * 1e9)

    def connect(self) -> Connection | None:
        return self.host.connect(self)

    @property
    def is_working(self) -> bool:
        """True if a call is inside the gate, or the device works for the process."""
        return self.program.inside > 0 or self.program.has_unfinished_work(self.clock.now)

    def is_quiet(self) -> bool:
        return not self.is_working

    def poll_delay(self) -> int:
        now = self.clock.now
        if self.program.inside:
            return 300_000
        ends = self._moves_until if self._moves_until > now else self.program.work_ends_at(now)
        return round(min(max(ends - now, 0.0), 0.0005) * 1e9)

    def on_drained(self) -> None:
        self._moves_until = self.clock.now + self.program.evict()

    def missing_bytes(self) -> int:
        requests = self.program.restore_requests
        return max(requests.missing_bytes, int(self.clock.now < requests.restored_at))

    def is_moving(self) -> bool:
        return self._moves_until > self.clock.now

    def wake_threads(self) -> None:
        self.program.wake_threads()

    def on_bell(self, uuid: str) -> None:
        self.host.on_bell(uuid)

    def on_leaving(self, turn: int) -> None:
        self.host.on_leave(self, turn)

    def on_welcome(self) -> None:
        super().on_welcome()
        self.host.on_welcome(self)

    def on_refused(self, message: dict[str, Any]) -> None:
        self.host.log_event(f"the coordinator refuses {self}: {message}")
        self.host.on_refused(self, message)

    @property
    def found_permit(self) -> Any:
        """The permit that the process has read from its page, valid or not."""
        return ffi.from_buffer("struct gpushare_permit *", self.permit_bytes)

    @property
    def may_enter(self) -> bool:
        """True if a thread waits outside of a turn and the process may enter.

        Either the permit allows a turn, or the process takes turns without a coordinator.
        """
        if not self.waiting or self.phase != OUT or self.is_without_coordinator:
            return self.waiting > 0 and self.phase == OUT
        is_current = self.host.rings_doorbell and self.link.state == CONNECTED
        permit = self.page.control.permit if is_current else self.found_permit
        over = permit.flags & RELIEVED and permit.deadline_ns and self.now() >= permit.deadline_ns
        used = permit.epoch in (0, self._agent.used)
        covered = not self._own_bits() & ~permit.devices
        return bool(permit.flags & MAY and covered and not over and not used and FIRST_TURN <= permit.turn < 1 << 63)

    # --- the end

    @property
    def is_in_turn(self) -> bool:
        return self.phase != OUT

    def die(self) -> None:
        """End the process and its work on the device."""
        self.alive = False
        self.program.die()
        self._steps = None
        self.close()
