"""Data of `%gpushare history`: turns and waits of one client in the last minutes."""

from __future__ import annotations

from typing import Any, NamedTuple

from jupyter_gpushare.units import format_duration, format_size

_STATES = {"waiting", "running", "held", "draining", "idle", "suspended", "gone"}
_TURN_STATES = {"running", "held"}  # a sequence of these states is one turn
STATE_SYMBOLS = {"running": "█", "draining": "█", "held": "▓", "waiting": "░", "suspended": "▒", "idle": "·", "": " "}
# Order of precedence of states that took equally long.
_STATE_ORDER = ("running", "draining", "held", "waiting", "suspended", "idle")
COLUMNS = 60
EMPTY_TEXT = "No turns, waits or cells in the last minutes."
MIN_SPAN_SECONDS = 10.0


class Interval(NamedTuple):
    """State of a client from `begin` to `end`, in seconds on the coordinator's clock."""

    state: str
    begin: float
    end: float


class HistoryData:
    """History of one client.

    `entries` are the coordinator's entries `{"at": seconds, "client": id, "what": …}`, the oldest first.
    `now` is a time of the same clock.
    `intervals` are the states of the client, and `cells` the times at which cells began.
    The plot spans at least `min_span` seconds.
    """

    def __init__(self, entries: list[dict[str, Any]], now: float, min_span: float = MIN_SPAN_SECONDS) -> None:
        self.entries = entries
        self.now = now
        states = [one for one in entries if one["what"] in _STATES]
        ends = [one["at"] for one in states[1:]] + [now]
        self.intervals = [Interval(one["what"], one["at"], end) for one, end in zip(states, ends) if end > one["at"]]
        self.cells = [one["at"] for one in entries if one["what"] == "cell_started"]
        self.begin = min([one["at"] for one in entries] + [now - min_span])

    def total(self, *states: str) -> float:
        """Return the seconds in any of these states."""
        return sum(one.end - one.begin for one in self.intervals if one.state in states)

    def columns(self, number: int) -> list[str]:
        """Return the state that took the most time in each of `number` equal parts of the span.

        A part is idle only if it has no other state, so that short turns are visible.
        """
        width = (self.now - self.begin) / number
        spent: list[dict[str, float]] = [{} for _ in range(number)]
        for one in self.intervals:
            first = min(number - 1, int((one.begin - self.begin) / width))
            last = min(number - 1, int((one.end - self.begin) / width))
            for column in range(first, last + 1):
                left, right = self.begin + column * width, self.begin + (column + 1) * width
                overlap = min(one.end, right) - max(one.begin, left)
                spent[column][one.state] = spent[column].get(one.state, 0.0) + overlap
        return [_dominant_state(one) for one in spent]

    def marks(self, number: int) -> list[int]:
        """Return the columns, of `number`, in which cells began."""
        width = (self.now - self.begin) / number
        return sorted({min(number - 1, int((at - self.begin) / width)) for at in self.cells})

    def summary(self) -> str:
        """Return a summary such as "The last 3 min 20 s: ran 12 s in 4 turns, waited 40 s, 6 cells"."""
        states = ["", *(one["what"] for one in self.entries if one["what"] in _STATES)]
        turns = sum(state in _TURN_STATES and before not in _TURN_STATES for before, state in zip(states, states[1:]))
        words = [f"ran {format_duration(self.total('running', 'draining'))} in {_counted(turns, 'turn')}"]
        if self.total("held"):
            words.append(f"held the GPU for {format_duration(self.total('held'))}")
        words.append(f"waited {format_duration(self.total('waiting'))}")
        if self.total("suspended"):
            words.append(f"suspended for {format_duration(self.total('suspended'))}")
        words.append(_counted(len(self.cells), "cell"))
        known = [one for one in self.entries if "expected_seconds" in one]
        if known:
            last = known[-1]
            took, expected = (format_duration(last[name]) for name in ("gpu_seconds", "expected_seconds"))
            words.append(f"the last cell that ran before used the GPU for {took}, and {expected} were expected")
            if last.get("allocated") or last.get("expected_allocated"):
                had, expected = (format_size(last[name]) for name in ("allocated", "expected_allocated"))
                words.append(f"it allocated up to {had}, and {expected} were expected")
        return f"The last {format_duration(self.now - self.begin)}: {', '.join(words)}"


def _dominant_state(spent: dict[str, float]) -> str:
    busy = {state: time for state, time in spent.items() if state not in ("idle", "gone") and time > 0}
    if busy:
        return max(sorted(busy, key=_STATE_ORDER.index), key=lambda state: busy[state])
    return "idle" if "idle" in spent else ""


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
