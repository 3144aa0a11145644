"""Program of a simulated process: threads that call the driver through the gate, work on the device, and memory.

A call is inside the gate for a moment and submits work to the device, which ends some time later.
The processes of a client do collectives, in which the work of each ends only when all have made their calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyter_gpushare.agent.rule import CLOSED_GATE, OPEN_GATE, STEP_GATE

from .memory_requests import RETRY_SECONDS, MemoryRequests
from .restore_requests import BYTES_PER_SECOND, OUT_OF_MEMORY, RESTORED, RestoreRequests
from .virtual_clock import NEVER, TimerHandle

if TYPE_CHECKING:
    from .simulated_process import SimulatedProcess

GATE_CHECK_SECONDS = 0.2  # between two checks of a waiting thread
MAX_QUEUED_SECONDS = 0.05  # of submitted work at the time of the next call


@dataclass
class WorkloadProfile:
    """Properties of a client's programs."""

    threads: int = 1
    think_seconds: float = 0.3  # between two bursts of calls, on average
    calls: int = 20  # in a burst, on average
    pause_seconds: float = 0.008  # between two calls
    call_seconds: float = 3e-5  # inside the gate, on average
    work_seconds: float = 0.004  # on the device, for each call, on average
    collective_probability: float = 0.0  # of a call that waits for the client's other processes
    give_up_probability: float = 0.0  # of an interruption at each check of a waiting thread
    max_bytes: int = 0  # of a process
    uses_swap: bool = False  # in mode swap, memory needs room on the device; else the driver pages it


@dataclass(eq=False)
class SimulatedThread:
    """Thread of a simulated program."""

    calls_left: int = 0  # in this burst
    stepped_opening: int = -1  # number of the opening (a step) in which the thread has made its call
    is_waiting: bool = False
    is_restoring: bool = False  # in a call that needs memory for which the device has no room yet
    waiting_since: float = 0.0
    passes: int = 0  # number of calls that have passed the gate, or have failed there, also by an interruption
    timer: TimerHandle | None = None


@dataclass(eq=False)
class Collective:
    """Collective with one call of each process that takes part."""

    missing: set[int] = field(default_factory=set)  # pids of the processes without their call


class SimulatedProgram:
    """Program of a process, with the state of its threads, its work and its memory."""

    def __init__(self, agent: SimulatedProcess) -> None:
        self.agent = agent
        self.profile: WorkloadProfile = agent.client.profile
        self.random, self.clock, self.host = agent.random, agent.clock, agent.host
        self.threads = [SimulatedThread() for _ in range(self.profile.threads)]
        self._collective_thread = SimulatedThread()  # makes the calls of collectives
        self._pending_collectives: list[Collective] = []
        self.inside = 0
        self._stream_end = 0.0
        self._unfinished_collectives: list[Collective] = []
        self.memory_requests = MemoryRequests(agent)
        self.restore_requests = RestoreRequests(agent)
        self.failed_calls = 0  # for which the device had no room
        self.call_count = 0
        for thread in self.threads:
            self._after(self.random.expovariate(1 / self.profile.think_seconds), self._burst, thread)
        self.threads.append(self._collective_thread)

    def _after(self, seconds: float, callback: object, thread: SimulatedThread) -> TimerHandle:
        return self.clock.schedule(self.clock.now + seconds, self.agent, callback, thread)  # type: ignore[arg-type]

    # --- threads

    def _burst(self, thread: SimulatedThread) -> None:
        thread.calls_left = 1 + int(self.random.expovariate(1 / self.profile.calls))
        self._allocate(lambda: self._call(thread))

    def _may_pass(self, thread: SimulatedThread) -> bool:
        agent = self.agent
        return agent.gate == OPEN_GATE or (agent.gate == STEP_GATE and thread.stepped_opening != agent.opening)

    def _call(self, thread: SimulatedThread) -> None:
        agent = self.agent
        if not self._may_pass(thread):
            if not thread.is_waiting:
                thread.is_waiting, thread.waiting_since = True, self.clock.now
                agent.change_waiting(1)
            thread.timer = self._after(GATE_CHECK_SECONDS, self._check_gate, thread)
            return
        if thread.is_waiting:
            thread.is_waiting = False
            agent.change_waiting(-1)
        self.inside += 1
        self.host.on_call(agent)
        restored = self.restore_requests.restore()
        thread.is_restoring = restored != RESTORED
        if thread.is_restoring:
            fails = restored == OUT_OF_MEMORY
            self._after(RETRY_SECONDS, self._leave_failed if fails else self._leave_restoring, thread)
            return
        thread.passes += 1
        self.call_count += 1
        if agent.gate == STEP_GATE:
            thread.stepped_opening = agent.opening
        # The call uses the restored memory even if the turn ends meanwhile.
        restoring = max(0.0, self.restore_requests.restored_at - self.clock.now)
        slow = 300 if self.random.random() < 0.01 else 1
        self._after(restoring + self.random.expovariate(1 / (slow * self.profile.call_seconds)), self._leave, thread)

    def _leave_restoring(self, thread: SimulatedThread) -> None:
        """Leave the gate, so that the turn can end, and try again."""
        self.inside -= 1
        self._call(thread)

    def _leave_failed(self, thread: SimulatedThread) -> None:
        """Return the error of a call whose memory has no room; a program may free the memory, or go on without it."""
        self.inside -= 1
        self.failed_calls += 1
        thread.passes += 1
        thread.is_restoring = False
        is_collective = thread is self._collective_thread
        if is_collective or self.random.random() < 0.5:
            report = self.agent.page.report
            report.allocated = report.resident + self.memory_requests.absent_bytes
            self.agent.write_slot()
        if is_collective:
            self._call(thread)  # the other processes depend on this call
        else:
            self._after(self.random.expovariate(1 / self.profile.think_seconds), self._burst, thread)

    def _leave(self, thread: SimulatedThread) -> None:
        self.inside -= 1
        self.agent.submissions += 1
        now = self.clock.now
        self._stream_end = max(self._stream_end, now) + self.random.expovariate(1 / self.profile.work_seconds)
        if thread is self._collective_thread:
            collective = self._pending_collectives.pop(0)
            collective.missing.discard(self.agent.pid)
            self._unfinished_collectives.append(collective)
            self.agent.client.finish_collectives()
            if self._pending_collectives:
                self._call(thread)
            return
        if self.profile.collective_probability and self.random.random() < self.profile.collective_probability:
            self.agent.client.start_collective(self.agent)
        thread.calls_left -= 1
        if thread.calls_left > 0:
            self._after(self.random.expovariate(1 / self.profile.pause_seconds), self._call_next, thread)
        else:
            self._after(self.random.expovariate(1 / self.profile.think_seconds), self._burst, thread)

    def _call_next(self, thread: SimulatedThread) -> None:
        """Make the next call, but not far ahead of the device, as programs do."""
        ahead = self._stream_end - self.clock.now - MAX_QUEUED_SECONDS
        if ahead > 0 or self._unfinished_collectives:
            self._after(max(ahead, 0.005), self._call_next, thread)
        elif self.profile.uses_swap and self.random.random() < 0.1:
            self._allocate(lambda: self._call(thread))
        else:
            self._call(thread)

    def _check_gate(self, thread: SimulatedThread) -> None:
        thread.timer = None
        if not thread.is_waiting:
            return
        if self.random.random() < self.profile.give_up_probability:
            self._give_up(thread)
        else:
            self._call(thread)

    def _give_up(self, thread: SimulatedThread) -> None:
        """Interrupt the waiting call of a thread."""
        thread.is_waiting = False
        self.agent.change_waiting(-1)
        if thread is self._collective_thread:
            self._after(0.01, self._call, thread)  # the other processes depend on this call
        else:
            thread.passes += 1
            self._after(self.random.expovariate(1 / self.profile.think_seconds), self._burst, thread)

    def wake_threads(self) -> None:
        """Wake the threads at the gate, as the gate's futex does."""
        for thread in self.threads:
            if thread.is_waiting and thread.timer:
                thread.timer.cancel()
                thread.timer = self._after(self.random.expovariate(20_000.0), self._on_wake, thread)

    def _on_wake(self, thread: SimulatedThread) -> None:
        thread.timer = None
        if thread.is_waiting:
            self._call(thread)

    @property
    def waiting_since(self) -> float | None:
        return min((thread.waiting_since for thread in self.threads if thread.is_waiting), default=None)

    # --- the device

    def has_unfinished_work(self, now: float) -> bool:
        return self._stream_end > now or bool(self._unfinished_collectives)

    def work_ends_at(self, now: float) -> float:
        """Return the time at which the submitted work ends, or NEVER if it waits for other processes."""
        return NEVER if self._unfinished_collectives else max(self._stream_end, now)

    def join_collective(self, collective: Collective) -> None:
        """Take part in a collective."""
        self._pending_collectives.append(collective)
        if len(self._pending_collectives) == 1:
            self._after(self.random.expovariate(1000.0), self._call, self._collective_thread)

    def update_collectives(self) -> None:
        before = len(self._unfinished_collectives)
        self._unfinished_collectives = [collective for collective in self._unfinished_collectives if collective.missing]
        if len(self._unfinished_collectives) < before:
            self._stream_end = max(
                self._stream_end, self.clock.now + self.random.expovariate(1 / self.profile.work_seconds)
            )

    def submit_long_work(self, seconds: float) -> None:
        """Submit work of this duration if the gate is open."""
        if self.agent.gate != CLOSED_GATE:
            self._stream_end = max(self._stream_end, self.clock.now + seconds)

    def die(self) -> None:
        self._unfinished_collectives.clear()
        self._stream_end = 0.0
        self.inside = 0

    # --- memory

    def _allocate(self, then: Callable[[], None]) -> None:
        """Change the allocated memory within the limit, then call `then`."""
        if not self.profile.max_bytes or self.memory_requests.is_waiting or self.random.random() < 0.5:
            then()
            return
        if not self.agent.may_allocate:
            then()
            return
        agent = self.agent
        control, report, slots = agent.page.control, agent.page.report, agent.client_page.slots
        target = self.random.randrange(self.profile.max_bytes)
        if self.profile.uses_swap and self.random.random() < 0.8:  # mostly growth, which needs room
            target = min(report.allocated + self.random.randrange(1 << 30), self.profile.max_bytes)
        siblings = sum(slots[number].allocated for number in range(64) if number != agent.slot)
        limit = control.memory_limit - siblings if control.memory_limit else target
        if target > report.allocated:
            more = min(target, max(limit, 0)) - report.allocated
            if more <= 0 or siblings + report.allocated + more > control.memory_backing:
                report.refused_allocations += 1
                then()
                return
            target = report.allocated + more
        added = max(0, target - report.allocated)
        report.resident = max(0, min(report.resident + added, target))
        report.allocated = target
        report.unmade = min(report.unmade, report.allocated - report.resident)
        agent.write_slot()
        if added and self.profile.uses_swap:
            self.memory_requests.wait(added, then)
        else:
            then()

    def evict(self) -> float:
        """Evict the memory above the resident target, and return the seconds of the transfer."""
        page = self.agent.page
        report, unbacked = page.report, page.report.allocated - page.report.unmade - page.control.evicted_limit
        # Memory without rows counts in equal parts on the devices, as in native/shim/memory/account/account.c.
        part, targets = report.resident // len(self.agent.devices), page.control.resident_target
        surplus = sum(max(0, part - targets[number]) for number in range(len(self.agent.devices)))
        target = max(report.resident - surplus, self.memory_requests.reserved_bytes, unbacked)
        if target >= report.resident:
            return 0.0
        moved = report.resident - target
        report.resident = target
        return float(moved / BYTES_PER_SECOND)
