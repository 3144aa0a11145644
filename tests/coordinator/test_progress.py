"""Tests of the progress of clients in the snapshot, from training steps and from what programs show."""

from __future__ import annotations

import time

import pytest

from jupyter_gpushare.coordinator.views.progress_fields import Progress

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import ProtocolProcess, wait_until
from .test_documented_snapshot import check

SECOND = 1_000_000_000
ALL_ONES = (1 << 64) - 1


def show(process: ProtocolProcess, done: int, total: int = 0, text: bytes = b"", seconds: int = 60) -> None:
    """Write a progress that began `seconds` ago with no part done."""
    found, now = process.report.progress, time.monotonic_ns()
    found.done, found.total, found.first, found.began_ns, found.changed_ns = done, total, 0, now - seconds * SECOND, now
    for number in range(8):
        found.text[number] = int.from_bytes(text.ljust(64, b"\0")[8 * number :][:8], "little")


def text_of(coordinator: CoordinatorProcess, client: str) -> str:
    found = coordinator.client(client) or {}
    check("Client", found)
    return str(found["progress_text"])


def test_progress_of_a_program_has_its_pace(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    process = processes("a")
    assert (coordinator.client("a") or {})["progress"] is None
    assert text_of(coordinator, "a") == ""
    show(process, 30, 100, "\x1b[31mépoque 2".encode())
    assert text_of(coordinator, "a") == "[31mépoque 2: 30 of 100 · 30 a minute · about 2 min 20 s left"
    found = (coordinator.client("a") or {})["progress"]
    assert {name: found[name] for name in ("done", "total", "text")} == {
        "done": 30,
        "total": 100,
        "text": "[31mépoque 2",
    }
    assert (found["per_minute"], found["seconds_left"]) == (30, 140)


def test_implausible_progress_is_bounded(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    process = processes("a")
    show(process, ALL_ONES, 5, b"\xff" * 64, seconds=0)
    process.report.training_steps = ALL_ONES
    found = (coordinator.client("a") or {})["progress"]
    assert (found["done"], found["total"], found["per_minute"]) == (1 << 53, None, None)
    process.report.progress.first = process.report.progress.began_ns = ALL_ONES
    assert text_of(coordinator, "a").endswith(f"{1 << 53} done")


def test_training_steps_are_the_progress_of_a_program_that_shows_none(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    process = processes("a", connect=False)
    process.report.training_steps = 1000  # under an earlier coordinator
    process.send_hello()
    other = processes("b")

    def mark() -> str:
        process.report.training_steps += 1
        return text_of(coordinator, "a")

    wait_until(lambda: "training steps: " in mark())
    wait_until(lambda: " a minute" in mark())
    other.report.training_steps = 0
    assert text_of(coordinator, "b") == ""
    show(process, 1, 2)
    assert text_of(coordinator, "a").startswith("1 of 2")


def test_steps_count_from_the_beginning_of_the_work(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """Steps before the first sample count, and steps of earlier cells and of an earlier coordinator do not."""
    process, kernel = processes("a", connect=False), processes.kernel("a")
    process.report.training_steps = 1000
    process.send_hello()

    def cell(state: str, request: str) -> None:
        kernel.cell(state, request)
        wait_until(lambda: (coordinator.client("a") or {})["cells"] == (state == "start"))

    def shows(done: int) -> bool:
        return text_of(coordinator, "a").startswith(f"training steps: {done} done")

    cell("start", "1")
    process.report.training_steps += 300
    wait_until(lambda: shows(300))
    process.report.training_steps += 5
    cell("end", "1")
    cell("start", "2")
    assert text_of(coordinator, "a") == ""
    process.report.training_steps += 20
    wait_until(lambda: shows(20))
    cell("end", "2")
    new = processes("b")
    new.report.training_steps = 40
    wait_until(lambda: text_of(coordinator, "b") == "training steps: 40 done")


def test_progress_of_a_kernel_ends_with_its_cell(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    process, kernel = processes("a"), processes.kernel("a")
    show(process, 1, 2)
    wait_until(lambda: not text_of(coordinator, "a"))
    kernel.cell("start", "1")
    wait_until(lambda: (coordinator.client("a") or {})["cells"] == 1)
    assert text_of(coordinator, "a").startswith("1 of 2")
    process.report.progress.began_ns = 0
    assert text_of(coordinator, "a") == ""
    process.report.training_steps += 7
    kernel.cell("end", "1")
    wait_until(lambda: not text_of(coordinator, "a"))


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(3, 10, None, ""), "3 of 10"),
        (Progress(3, None, 12.34, "training steps"), "training steps: 3 done · 12 a minute"),
        (Progress(3, 4, 1.26, ""), "3 of 4 · 1.3 a minute · about 48 s left"),
        (Progress(10, 10, 30.0, ""), "10 of 10 · 30 a minute"),
        (Progress(1, 3, 0.01, ""), "1 of 3 · about 3 h 20 min left"),
    ],
)
def test_progress_is_a_short_text(progress: Progress, text: str) -> None:
    assert str(progress) == text
