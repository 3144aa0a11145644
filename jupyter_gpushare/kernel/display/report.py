"""Report of `%gpushare status` as text and as HTML."""

from __future__ import annotations

from .report_data import PROBLEM_HEADING, ReportData, device_line
from .report_html import page


class Report(ReportData):
    """State of one client and of the devices, as text and as HTML; see `ReportData`."""

    def __repr__(self) -> str:
        lines = [f"{PROBLEM_HEADING} {self.problem}"] if self.problem else []
        lines += [f"{name:<9} {value}" for name, value in self.rows()]
        for device in self.devices:
            lines += ["", device_line(device)]
            for position, state, name, time in self.turns(device):
                lines.append(f"  {position:<3} {state:<8} {name}{' · ' if time else ''}{time}")
        return "\n".join(lines).strip()

    def _repr_html_(self) -> str:
        return page(self)
