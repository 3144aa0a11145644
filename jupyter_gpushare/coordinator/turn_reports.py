"""What pages report of turns, as events: the difference between what was known of a process and what its page says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..core import events as ev
from ..core import model
from ..wire.page import FIRST_TURN, IN, OUT, Turn
from .members import Member
from .ports import ProcessPort

_Time = Callable[[int], float]


def news(member: Member, port: ProcessPort, process: model.Process, now: float) -> Iterator[ev.Event] | None:
    """Return the events of what has changed since the last look; None: the page is being written at this moment.

    Each event is to be handled before the next one is asked for.
    """
    turn = port.page.read_turn()
    return None if turn is None else _news(member, port, process, turn, now)


def brought(port: ProcessPort, now: float) -> model.Turn | None:
    """Return the turn that a process is in when it joins."""
    turn = port.page.read_turn() or Turn()
    port.turn, port.looked_at = turn, now
    return model.Turn(turn.turn, turn.phase == IN) if _is_in(turn) else None


def _news(member: Member, port: ProcessPort, process: model.Process, turn: Turn, now: float) -> Iterator[ev.Event]:
    before, port.turn = port.turn, turn
    since, port.looked_at = port.looked_at, now
    yield from _of_turns(port.number, before, turn, lambda ns: max(since, min(ns / 1e9, now)))
    if not _is_same(before, turn):
        port.levels = (False, False, port.levels[2])
    yield from _of_levels(port, _is_in(turn))
    if turn.phase == IN:
        return  # a thread that passes the open gate counts as waiting for a moment
    waiting = bool(port.page.report.waiting)
    if process.wants and not waiting:
        yield ev.Unwanted(port.number)
    elif waiting and not process.wants and not member.stopped:
        yield ev.Wanted(port.number)


def _of_turns(process: int, before: Turn, turn: Turn, time: _Time) -> Iterator[ev.Event]:
    """Steps that the look has missed are reported as well. `time`: seconds, within the time since the last look."""
    same = _is_same(before, turn)
    if _is_in(before) and not same:
        yield ev.Ended(process, before.turn)
    if turn.turn < FIRST_TURN:
        return
    reopened = turn.phase == IN and (turn.epoch != before.epoch or before.phase != IN)
    if not same or reopened:
        yield ev.Began(process, turn.turn, time(turn.began_ns))
    if turn.closed_ns and (not same or turn.closed_ns != before.closed_ns):
        yield ev.Closed(process, turn.turn, time(turn.closed_ns))
    if turn.phase == OUT and (not same or before.phase != OUT):
        yield ev.Ended(process, turn.turn)


def _of_levels(port: ProcessPort, is_in: bool) -> Iterator[ev.Event]:
    report, before = port.page.report, port.levels
    idle, evicting = is_in and bool(report.idle), is_in and bool(report.evicting)
    restored = int(report.restored)
    port.levels = idle, evicting, restored
    if idle != before[0]:
        yield ev.WentIdle(port.number) if idle else ev.WentBusy(port.number)
    if evicting and not before[1]:
        yield ev.Evicting(port.number)
    if restored != before[2]:
        yield ev.Restored(port.number)


def _is_same(before: Turn, turn: Turn) -> bool:
    return (before.turn, before.began_ns) == (turn.turn, turn.began_ns)


def _is_in(turn: Turn) -> bool:
    return turn.phase != OUT and turn.turn >= FIRST_TURN
