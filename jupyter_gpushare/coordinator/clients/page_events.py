"""Events derived from pages: turns, waits and levels of a process since the last read, and progress of a client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...core.base.device_info import ReportedTurn
from ...core.interface import events as ev
from ...core.state import model
from ...wire.page import FIRST_TURN, IN, OUT, Turn
from .client_runtime import ClientRuntime
from .process_handle import ProcessHandle

_Time = Callable[[int], float]


def read_events(
    runtime: ClientRuntime, handle: ProcessHandle, process: model.Process, now: float
) -> Iterator[ev.Event] | None:
    """Return the events since the last read of the page, or None while the process is writing the page.

    The caller must handle each event before it takes the next one.
    """
    turn = handle.page.read_turn()
    return None if turn is None else _page_events(runtime, handle, process, turn, now)


def turn_at_join(handle: ProcessHandle, now: float) -> ReportedTurn | None:
    """Return the turn that a process is in when it joins."""
    turn = handle.page.read_turn() or Turn()
    handle.last_turn, handle.sampled_at = turn, now
    return ReportedTurn(turn.turn, turn.phase == IN) if _is_in(turn) else None


def _page_events(
    runtime: ClientRuntime, handle: ProcessHandle, process: model.Process, turn: Turn, now: float
) -> Iterator[ev.Event]:
    before, handle.last_turn = handle.last_turn, turn
    since, handle.sampled_at = handle.sampled_at, now
    restores = list(_restore_events(handle))
    yield from _turn_events(handle.number, before, turn, lambda ns: max(since, min(ns / 1e9, now)), restores)
    if not _is_same_turn(before, turn):
        handle.last_levels = (False, False, handle.last_levels[2])
    yield from _level_events(handle, _is_in(turn))
    if turn.phase == IN:
        return  # a thread that passes the open gate is counted as waiting for a moment
    waiting = bool(handle.page.report.waiting)
    if process.is_waiting_at_gate and not waiting:
        yield ev.GateWaitEnded(handle.number)
    elif waiting and not process.is_waiting_at_gate and not runtime.is_stopped:
        yield ev.GateWaitStarted(handle.number)


def _turn_events(process: int, before: Turn, turn: Turn, time: _Time, restores: list[ev.Event]) -> Iterator[ev.Event]:
    """Yield the events between two turns, with events that no read has seen.

    `time` converts nanoseconds to seconds, within the time since the last read. `restores` come before the end of
    their turn, because the scheduler ignores them afterwards.
    """
    same = _is_same_turn(before, turn)
    if _is_in(before) and not same:
        yield ev.TurnLeft(process, before.turn)
    if turn.turn < FIRST_TURN:
        return
    reopened = turn.phase == IN and (turn.epoch != before.epoch or before.phase != IN)
    if not same or reopened:
        yield ev.TurnEntered(process, turn.turn, time(turn.entered_ns))
    if turn.closed_ns and (not same or turn.closed_ns != before.closed_ns):
        yield ev.GateClosed(process, turn.turn, time(turn.closed_ns))
    yield from restores
    if turn.phase == OUT and (not same or before.phase != OUT):
        yield ev.TurnLeft(process, turn.turn)


def _restore_events(handle: ProcessHandle) -> Iterator[ev.Event]:
    idle, evicting, before = handle.last_levels
    restored = int(handle.page.report.restored)
    handle.last_levels = idle, evicting, restored
    if restored != before:
        yield ev.RestoreFinished(handle.number)


def _level_events(handle: ProcessHandle, is_in: bool) -> Iterator[ev.Event]:
    report, before = handle.page.report, handle.last_levels
    idle, evicting = is_in and bool(report.idle), is_in and bool(report.evicting)
    handle.last_levels = idle, evicting, before[2]
    if idle != before[0]:
        yield ev.ProcessIdle(handle.number) if idle else ev.ProcessBusy(handle.number)
    if evicting and not before[1]:
        yield ev.EvictionStarted(handle.number)


def _is_same_turn(before: Turn, turn: Turn) -> bool:
    return (before.turn, before.entered_ns) == (turn.turn, turn.entered_ns)


def _is_in(turn: Turn) -> bool:
    return turn.phase != OUT and turn.turn >= FIRST_TURN


class ProgressReports:
    """Last reported progress of each client, so that no progress is reported twice.

    The scheduler finds out from the progress which clients can be colocated.
    """

    def __init__(self) -> None:
        self._reported: dict[str, ev.Progress] = {}

    def progress_event(self, runtime: ClientRuntime) -> ev.Progress | None:
        """Return the progress of a client, or None if the client has not run since the last report."""
        counters = runtime.counters
        at = counters.counted_ns / 1e9 if counters.counted_ns else None
        progress = ev.Progress(
            runtime.client_id,
            counters.launches,
            counters.blocks,
            counters.gpu_ns / 1e9,
            at,
            counters.training_steps,
        )
        if progress == self._reported.get(runtime.client_id) or not (counters.launches or counters.gpu_ns):
            return None
        self._reported[runtime.client_id] = progress
        return progress

    def remove(self, client: str) -> None:
        self._reported.pop(client, None)
