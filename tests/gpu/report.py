"""Report of a run on a card: a table at the end, and two files in the folder `GPUSHARE_TEST_FIGURES`.

`report.json` has the results and figures of the tests, and `failures.txt` has the errors and output of failed tests.
Both files grow after each test, so that a run which is stopped early leaves the results of the tests before.
A test adds a figure with the fixture `record_property`.
The table leaves out the figure `observed` of the driver facts, which is long; the reason of a failure has its end.
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

NAME = "card report"
OBSERVED = "observed"  # the figure that only `report.json` has


class Row(NamedTuple):
    """Result of one test."""

    part: str
    test: str
    outcome: str
    seconds: float
    reason: str
    figures: dict[str, Any]


def part_of(nodeid: str) -> str:
    """Return the name of the part that a test belongs to: its file in this folder, or another folder."""
    file = Path(nodeid.partition("::")[0])
    return file.stem.removeprefix("test_") if file.parent.name == "gpu" else file.parent.name


class CardReport:
    """Plugin that collects the results of all tests of a run, also of those that run in workers."""

    def __init__(self) -> None:
        self._reports: dict[str, list[pytest.TestReport]] = {}
        folder = os.environ.get("GPUSHARE_TEST_FIGURES")
        self._folder = Path(folder) if folder else None
        self._setting: dict[str, str] = {}

    def pytest_sessionstart(self) -> None:
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / "failures.txt").write_text("")
            self._setting = {"card": card(), "date": time.strftime("%Y-%m-%d")}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reports = self._reports.setdefault(report.nodeid, [])
        reports.append(report)
        if self._folder and (report.failed or report.when == "teardown"):
            self._write(self._folder, report, is_failed=any(one.failed for one in reports))

    def _write(self, folder: Path, report: pytest.TestReport, is_failed: bool) -> None:
        """Write the results so far, and the error of a failed test before its teardown, which may hang."""
        tests = [row._asdict() for row in self.rows()]
        (folder / "report.json").write_text(json.dumps({**self._setting, "tests": tests}, indent=1) + "\n")
        parts = [f"==== {report.nodeid}\n{report.longreprtext}"] if report.failed else []
        if is_failed and report.when == "teardown":
            parts += [f"---- {title}\n{text}" for title, text in report.sections]
        with (folder / "failures.txt").open("a") as file:
            file.writelines(part + "\n" for part in parts)

    def rows(self) -> list[Row]:
        return [_row(nodeid, reports) for nodeid, reports in self._reports.items()]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._folder:
            return
        terminalreporter.section(f"{self._setting['card']}, {self._setting['date']} ({self._folder})")
        for line in format_rows(self.rows()):
            terminalreporter.write_line(line)


def register_report(config: pytest.Config) -> None:
    """Register the report of a run once, and not in the workers of the run."""
    if not hasattr(config, "workerinput") and not config.pluginmanager.has_plugin(NAME):
        config.pluginmanager.register(CardReport(), NAME)


def _row(nodeid: str, reports: list[pytest.TestReport]) -> Row:
    outcomes = [report.outcome for report in reports]
    outcome = next((bad for bad in ("failed", "skipped") if bad in outcomes), "passed")
    reason = next((_reason(report) for report in reports if report.outcome != "passed"), "")
    figures = dict(reports[-1].user_properties)
    return Row(part_of(nodeid), nodeid.partition("::")[2], outcome, round(_seconds(reports), 1), reason, figures)


def _seconds(reports: list[pytest.TestReport]) -> float:
    return sum(report.duration for report in reports)


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # of a skipped test: file, line, reason
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).splitlines()[0][:400]


def format_rows(rows: list[Row]) -> Iterator[str]:
    """Yield a line for each test with figures or without success, and one for the other tests of each part."""
    for part in dict.fromkeys(row.part for row in rows):
        own = [row for row in rows if row.part == part]
        plain = [row for row in own if row.outcome == "passed" and not row.figures.keys() - {OBSERVED}]
        yield f"{part}: {sum(row.seconds for row in own):.0f} s, {len(plain)} tests passed without figures"
        for row in own:
            if row not in plain:
                yield f"  {row.outcome:7} {row.seconds:5.1f} s  {row.test}  {row.reason}".rstrip()
            for name, value in row.figures.items():
                if name == OBSERVED:
                    continue
                text = f"{value:,.6g}" if isinstance(value, float) else str(value)
                yield f"  {'':17} {name} = {textwrap.shorten(text, 100)}"


def card() -> str:
    """Return the name, the driver and the memory of the card, by nvidia-smi, or "simulated device"."""
    if os.environ.get("DRIVER") != "gpu":
        return "simulated device"
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown card: {error}"
