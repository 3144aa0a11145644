"""Tests of expectations: a cell that runs again is expected to take as long as its last runs did."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.measure.cell_runs import MAX_NAMES, CellRuns, RunNeeds
from jupyter_gpushare.core.views.wait_forecast import forecast_wait

from .simulated_host import SimulatedHost, host_of
from .simulated_process import SimulatedProcess


@pytest.fixture
def host() -> SimulatedHost:
    return host_of("gpu", policy="interactive", time_quantum=5.0, min_quantum=0.1, cell_linger=0.0)


def run_named(host: SimulatedHost, process: SimulatedProcess, name: str, seconds: float) -> None:
    """Run a cell to its end while no other client contends for the device."""
    done: list[float] = []
    host.run_cell(process, seconds, lambda: done.append(host.now), name)
    host.run_until(lambda: bool(done))


def test_the_median_time_and_the_largest_memory_of_the_last_three_runs_are_expected() -> None:
    runs = CellRuns()
    assert runs.expected(("hash", "id")) is None
    for seconds in (100.0, 4.0, 0.5, 5.0):
        runs.add(("hash", "id"), RunNeeds(seconds, int(seconds)))
    assert runs.expected(("hash", "id")) == RunNeeds(4.0, 5)
    assert runs.expected(("edited", "id")) == RunNeeds(4.0, 5)
    assert runs.expected(("edited", "other")) is None


def test_the_names_that_were_used_last_are_kept() -> None:
    runs = CellRuns()
    for number in range(2 * MAX_NAMES):
        runs.add(("often",), RunNeeds(1.0, 0))
        runs.add((str(number),), RunNeeds(2.0, 0))
    assert runs.expected(("often",)) == RunNeeds(1.0, 0)
    assert runs.expected((str(2 * MAX_NAMES - 1),)) == RunNeeds(2.0, 0)
    assert runs.expected(("0",)) is None


def test_a_cell_that_was_short_goes_before_a_cell_that_was_long(host: SimulatedHost) -> None:
    """Both cells begin to wait behind a third client, and the long cell is the first in the queue."""
    long, short = (host.start_client(name, busy=False) for name in ("long", "short"))
    run_named(host, long, "training", 60.0)
    run_named(host, short, "plot", 2.0)
    host.run(100.0)
    host.start_client("other")
    host.run(10.0)
    ended: dict[str, float] = {}
    began = host.now
    host.run_cell(long, 60.0, lambda: ended.setdefault("long", host.now - began), "training")
    host.run_cell(short, 2.0, lambda: ended.setdefault("short", host.now - began), "plot")
    host.run_until(lambda: "short" in ended)
    assert ended["short"] <= 2.11
    assert "long" not in ended


def test_a_known_long_cell_does_not_delay_a_new_cell(host: SimulatedHost) -> None:
    """Without the expectation, both cells would begin with nothing, and take turns."""
    long, new = (host.start_client(name, busy=False) for name in ("long", "new"))
    run_named(host, long, "training", 30.0)
    host.run(100.0)
    ended: list[float] = []
    host.run_cell(long, 30.0, lambda: None, "training")
    host.run(1.0)
    began = host.now
    host.run_cell(new, 8.0, lambda: ended.append(host.now - began))
    host.run_until(lambda: bool(ended))
    assert ended[0] <= 8.11


def test_a_cell_that_takes_longer_than_before_gives_way_at_once(host: SimulatedHost) -> None:
    liar, new = (host.start_client(name, busy=False) for name in ("liar", "new"))
    for _ in range(3):
        run_named(host, liar, "cell", 3.0)
    host.run(100.0)
    host.run_cell(liar, 1000.0, lambda: None, "cell")
    host.run(0.05)
    host.run_cell(new, 4.0, lambda: None)
    host.run_until(lambda: host.running() == "new")
    assert host.scheduler.clients["liar"].gpu_seconds - 9.0 <= 3.05


def test_wrong_expectations_gain_nothing(host: SimulatedHost) -> None:
    """One client claims short cells and then works for long; the other client works all the time."""
    host.start_client("honest")
    liar = host.start_client("liar", busy=False)
    lengths = [0.1, 0.1, 0.1, 50.0]

    def again(number: int) -> None:
        host.call_after(0.0, lambda: host.run_cell(liar, lengths[number % 4], lambda: again(number + 1), "cell"))

    again(0)
    host.run(30.0)
    assert host.fractions(300.0)["liar"] <= 0.55


def test_time_on_the_cpu_does_not_count(host: SimulatedHost) -> None:
    """A client that alone contends for the device keeps it while its cell works on the CPU."""
    client = host.scheduler.clients[host.start_client("a", busy=False).client]
    host.handle_event(ev.CellStarted("a", "1", ("cell",), busy_seconds=7.0))
    host.wait_at_gate(*host.processes.values())
    host.run(60.0)
    host.handle_event(ev.CellEnded("a", "1", busy_seconds=8.5))
    assert client.cell_runs.expected(("cell",)) == RunNeeds(1.5, 0)


def test_cells_at_the_same_time_leave_no_expectation(host: SimulatedHost) -> None:
    client = host.scheduler.clients[host.start_client("a", busy=False).client]
    for number in "12":
        host.handle_event(ev.CellStarted("a", number, (f"cell {number}",)))
    for number in "12":
        host.handle_event(ev.CellEnded("a", number))
    assert client.cell_runs.expected(("cell 1",)) is None


def test_the_wait_behind_a_known_cell_is_the_time_that_it_has_left(host: SimulatedHost) -> None:
    known, waiting = (host.start_client(name, busy=False) for name in ("known", "waiting"))
    run_named(host, known, "cell", 4.0)
    run_named(host, waiting, "longer cell", 20.0)
    host.run(100.0)
    host.run_cell(known, 4.0, lambda: None, "cell")
    host.run(1.0)
    host.run_cell(waiting, 20.0, lambda: None, "longer cell")
    forecast = forecast_wait(host.scheduler, host.scheduler.clients["waiting"], host.now)
    assert forecast == (1, pytest.approx(3.0, abs=0.01))
    assert host.run_until(lambda: host.running() == "waiting") == pytest.approx(3.0, abs=0.01)


def test_a_cell_that_filled_the_device_runs_beside_no_other_client() -> None:
    """The client has freed the memory since, and has not allocated it yet when the cell runs again."""
    host = host_of("gpu", sharing="packed", time_quantum=1.0)
    size = host.scheduler.devices["gpu"].info.memory
    big = host.start_client("big", busy=False)
    for name, allocated in (("training", size * 3 // 4), ("plot", 0), ("plot", 0)):
        host.run_cell(big, 1.0, name=name)
        host.report_memory("big", allocated)
        host.run(2.0)
        host.report_memory("big", 0)
        host.handle_event(ev.ReleaseRequested("big"))  # so that the memory of the cell's turn counts no longer
        host.run(0.1)
    host.start_client("other")
    host.report_memory("other", size // 2)

    def runs_beside_the_other(name: str) -> bool:
        host.run_cell(big, 100.0, name=name)
        host.run_until(lambda: host.phase("big") == "running")
        number = len(host.scheduler.devices["gpu"].grants)
        big.busy = False
        host.stop_waiting(big)
        host.end_cell("big", "cell")
        host.handle_event(ev.ReleaseRequested("big"))
        host.run(0.5)
        return number == 2

    assert runs_beside_the_other("plot")
    assert not runs_beside_the_other("training")
