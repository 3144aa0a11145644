"""Tests of cells that ran before and are expected to take as long as they did then, under the shipped settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.wire import messages

from .notebook_client import Notebook
from .system_host import MIB, SystemHost, last_end, wait_until

DEVICE_BYTES = 1024 * MIB
SIZE = 640 * MIB  # bytes of each notebook, so that two notebooks take turns
FILL = f"check(cuda.alloc({SIZE})[0])"
SHORT, LONG = 0.4, 4.0  # seconds
LAUNCH = 0.005  # seconds
MAX_SECONDS = LONG / 2  # of the false cell's work, from the first call of another cell to its last launch
LIES_SECONDS = 60.0
KNOWN = 1.0  # seconds of a cell that has run before


class Liar:
    """Notebook with one cell, whose length is the value of a variable.

    The text of the cell stays the same, so the coordinator expects a run as long as those before.
    """

    def __init__(self, notebook: Notebook) -> None:
        self.notebook = notebook

    def start(self, seconds: float) -> str:
        self.notebook.run(f"seconds = {seconds}")
        return self.notebook.start("work(seconds)")

    def run(self, seconds: float) -> None:
        self.notebook.finish(self.start(seconds))

    def worked(self, host: SystemHost, since: int, until: int) -> float:
        """Return the seconds of work between two times of the device."""
        return LAUNCH * sum(since <= launch.begin_ns < until for launch in host.launches(self.notebook.pid))

    def long_runs(self, host: SystemHost) -> list[dict[str, Any]]:
        """Return the ends of the cell's long runs."""
        entries = host.request(messages.History(client=self.notebook.client_id))["entries"]
        return [entry for entry in entries if entry.get("gpu_seconds", 0.0) > LONG / 2]


@pytest.fixture
def notebooks(start: Callable[..., Notebook]) -> tuple[Liar, Notebook]:
    """Return a notebook whose cell is expected to be short, and another notebook."""
    liar, honest = start(), start()
    for notebook in (liar, honest):
        notebook.run(FILL)
    for _ in range(3):
        Liar(liar).run(SHORT)
    return Liar(liar), honest


@pytest.mark.parametrize("host", [DEVICE_BYTES], indirect=True)
def test_a_false_expectation_is_corrected_and_delays_no_other_cell(
    default_settings_host: SystemHost, notebooks: tuple[Liar, Notebook]
) -> None:
    host, (liar, honest) = default_settings_host, notebooks
    seconds = []
    for _ in range(3):
        run = liar.start(LONG)
        wait_until(lambda: host.phase(liar.notebook.client_id) == "running")
        before = len(host.launches(honest.pid))
        cell = honest.start(f"work({SHORT})")
        wait_until(
            lambda before=before: host.phase(honest.client_id) == "waiting" or len(host.launches(honest.pid)) > before
        )
        since = time.monotonic_ns()
        honest.finish(cell)
        seconds.append(liar.worked(host, since, last_end(host.launches(honest.pid))))
        liar.notebook.finish(run)
    assert max(seconds) <= MAX_SECONDS, seconds
    expected = [run["expected_seconds"] for run in liar.long_runs(host)]
    assert all(SHORT / 2 < one < LONG / 2 for one in expected[:2]), expected
    assert expected[2] > LONG / 2, expected


@pytest.mark.parametrize("host", [DEVICE_BYTES], indirect=True)
def test_the_expected_wait_behind_a_known_cell_is_the_rest_of_the_cell(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    """The usual turn of the notebook is much shorter than that cell."""
    host, (notebook, other) = default_settings_host, (start(), start())
    for one in (notebook, other):
        one.run(FILL)
    for cell in (f"work({KNOWN})", *["work(0.02)"] * 10):
        notebook.run(cell)
    loop = other.start("while True: work(0.05)")
    wait_until(lambda: LAUNCH * len(host.launches(other.pid)) > 2 * KNOWN)
    expected = wait_until(lambda: expected_ends(host, notebook, other))  # again without a poll in one whole turn
    other.interrupt()
    assert other.finish(loop)["ename"] == "KeyboardInterrupt"
    assert min(last for _, last in expected) >= 0.6 * KNOWN, expected
    assert max(first for first, _ in expected) <= 1.5 * KNOWN, expected


def expected_ends(host: SystemHost, notebook: Notebook, other: Notebook) -> list[tuple[float, float]]:
    """Run the known cell, and return its expected ends in seconds of its turn, each as the bounds of a time.

    Each expectation is from the first half of the cell, because a cell that takes longer has another one. The result is
    empty if the cell had several turns: a pause of its process, on a busy machine, ends a turn early.
    """

    def turn_seconds() -> float | None:
        grants = {grant["client"]: grant["granted_seconds"] for grant in host.status()["devices"][0]["grants"]}
        return grants.get(notebook.client_id)

    found, launches = [], len(host.launches(notebook.pid))
    cell = notebook.start(f"work({KNOWN})")
    wait_until(lambda: turn_seconds() is not None or len(host.launches(notebook.pid)) > launches)
    while (before := turn_seconds()) is not None:
        wait = host.request(messages.WaitStatus(client=other.client_id))
        after = turn_seconds()
        is_next = wait["waiting"] and [one["client"] for one in wait["running"]] == [notebook.client_id]
        if is_next and after is not None and before <= after < KNOWN / 2:
            found.append((before + wait["expected_wait"], after + wait["expected_wait"]))
    notebook.finish(cell)
    worked = host.launches(notebook.pid)[launches:]
    is_one_turn = not any(worked[0].begin_ns < one.begin_ns < last_end(worked) for one in host.launches(other.pid))
    return found if is_one_turn else []


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("host", [DEVICE_BYTES], indirect=True)
def test_false_expectations_gain_no_time(default_settings_host: SystemHost, notebooks: tuple[Liar, Notebook]) -> None:
    """Three short runs precede each long run, so that the long run is expected to be short."""
    host, (liar, honest) = default_settings_host, notebooks

    def worked() -> list[int]:
        return [len(host.launches(pid)) for pid in (liar.notebook.pid, honest.pid)]

    loop = honest.start("while True: work(0.05)")
    wait_until(lambda: host.phase(honest.client_id) == "running")
    before, end = worked(), time.monotonic() + LIES_SECONDS
    while time.monotonic() < end:
        for seconds in (SHORT, SHORT, SHORT, LONG):
            liar.run(seconds)
    lied, waited = (now - then for now, then in zip(worked(), before, strict=True))
    honest.interrupt()
    assert honest.finish(loop)["ename"] == "KeyboardInterrupt"
    assert 0 < lied <= 1.1 * (lied + waited) / 2
