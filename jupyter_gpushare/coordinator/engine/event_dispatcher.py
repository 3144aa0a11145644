"""Dispatcher of events to the scheduler, of its commands to the executor, and of a tick at its next deadline.

After each dispatch, observers receive the clients concerned.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ...core.interface import events as ev
from .command_executor import CommandExecutor
from .state import CoordinatorState

# Agents close their gates at the deadline without the coordinator, which checks that they did only after this time.
AGENT_DEADLINE_GRACE_SECONDS = 0.003


class EventDispatcher:
    """Dispatcher of all events of one coordinator. `connect` must come before the first event."""

    _executor: CommandExecutor

    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._loop = asyncio.get_running_loop()
        self._pending_events: deque[ev.Event] = deque()
        self._observers: Sequence[Callable[[set[str]], None]] = ()
        self._timer: asyncio.TimerHandle | None = None

    def connect(self, executor: CommandExecutor, observers: Sequence[Callable[[set[str]], None]]) -> None:
        """Set the executor of commands, and the observers, which need the dispatcher for their own construction.

        After each dispatch every observer is called, in this order, with the ids of the clients that it concerned.
        """
        self._executor = executor
        self._observers = observers

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    def dispatch(self, event: ev.Event) -> None:
        """Pass an event to the scheduler and execute its commands; do the same with events that follow from these.

        Raises GpuShareError for a refused request, without a change.
        """
        changed = self._client_of_event(event)
        commands = self._state.scheduler.handle(event, self._state.now)
        while True:
            for command in commands:
                changed.add(command.client)
                self._executor.execute(command)
            if not self._pending_events:
                break
            event = self._pending_events.popleft()
            changed |= self._client_of_event(event)
            commands = self._state.scheduler.handle(event, self._state.now)
        for observer in self._observers:
            observer(changed)

    def enqueue(self, event: ev.Event) -> None:
        """Add an event that follows from a command to the dispatch that executes the command."""
        self._pending_events.append(event)

    def schedule_deadline(self, _changed: set[str]) -> None:
        """Schedule the tick of the scheduler's next deadline, which any dispatch may change."""
        due = self._state.scheduler.next_deadline()
        if due is not None and self._state.scheduler.turns.is_turn_deadline(due):
            due += AGENT_DEADLINE_GRACE_SECONDS
        if self._timer:
            if due == self._timer.when():
                return
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        self.dispatch(ev.Tick())

    def _client_of_event(self, event: ev.Event) -> set[str]:
        """Return the client that an event is about, or the empty set."""
        if process := self._state.scheduler.processes.get(getattr(event, "process", 0)):
            return {process.client.id}
        client = getattr(event, "client", "")
        return {client} if client else set()
