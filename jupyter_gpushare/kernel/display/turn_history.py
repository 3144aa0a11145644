"""Result of `%gpushare history` as text and as a plot."""

from __future__ import annotations

from .history_data import COLUMNS, EMPTY_TEXT, STATE_SYMBOLS, HistoryData
from .history_html import plot


class History(HistoryData):
    """Turns and waits of one client as text and as a plot; see `HistoryData`."""

    def __repr__(self) -> str:
        if not self.entries:
            return EMPTY_TEXT
        line = "".join(STATE_SYMBOLS[state] for state in self.columns(COLUMNS))
        marked = set(self.marks(COLUMNS))
        marks = "".join("╵" if column in marked else " " for column in range(COLUMNS))
        legend = "█ running  ░ waiting  · idle  ╵ a cell begins"
        for state in ("held", "suspended"):
            if self.total(state):
                legend += f"  {STATE_SYMBOLS[state]} {state}"
        return "\n".join([self.summary(), line, marks.rstrip(), legend])

    def _repr_html_(self) -> str:
        return plot(self)
