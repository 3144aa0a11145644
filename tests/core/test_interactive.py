"""Tests of the policy `interactive`: short cells overtake, tricks gain nothing, users are equal, no client starves."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.interface import events as ev

from .simulated_host import SimulatedHost, host_of
from .simulated_process import SimulatedProcess

QUANTUM_SECONDS = 5.0
MIN_QUANTUM_SECONDS = 0.1


@pytest.fixture
def host() -> SimulatedHost:
    return host_of(
        "gpu", policy="interactive", time_quantum=QUANTUM_SECONDS, min_quantum=MIN_QUANTUM_SECONDS, cell_linger=0.0
    )


def test_short_cell_overtakes_long_cells(host: SimulatedHost) -> None:
    for name in "abc":
        host.start_client(name)
    short = host.start_client("short", busy=False)
    host.run(60)
    for _ in range(10):
        waited = host.scheduler.clients["short"].wait_seconds
        done: list[float] = []
        host.run_cell(short, 0.3, lambda done=done: done.append(host.now))  # type: ignore[misc]
        host.run_until(lambda done=done: bool(done))  # type: ignore[misc]
        assert host.scheduler.clients["short"].wait_seconds - waited <= MIN_QUANTUM_SECONDS + 1e-6
        host.run(3.3)


def test_long_cell_gives_way_to_shorter_cells(host: SimulatedHost) -> None:
    host.start_client("long")
    host.run(20)
    host.start_client("newcomer")
    host.run(10)
    third = host.start_client("third", busy=False)
    host.wait_at_gate(third)
    assert host.run_until(lambda: host.running() == "third") <= MIN_QUANTUM_SECONDS


def test_splitting_work_into_many_cells_gains_nothing(host: SimulatedHost) -> None:
    host.start_client("whole")
    split = host.start_client("split", busy=False)

    def again() -> None:
        host.call_after(0.0, lambda: host.run_cell(split, 0.25, again))

    again()
    host.run(30)
    got = host.fractions(100)
    assert got["split"] <= 0.51
    assert got["whole"] >= 0.49


def test_pretending_to_begin_cells_gains_nothing(host: SimulatedHost) -> None:
    host.start_client("honest")
    host.start_client("pretender")

    def pretend(number: int) -> None:
        host.start_cell("pretender", str(number))
        if number:
            host.end_cell("pretender", str(number - 1))
        host.call_after(0.3, lambda: pretend(number + 1))

    pretend(0)
    assert host.fractions(300) == pytest.approx({"honest": 0.5, "pretender": 0.5}, abs=0.02)


def test_giving_turns_up_early_gains_nothing(host: SimulatedHost) -> None:
    host.start_client("patient")
    host.start_client("nervous")

    def release() -> None:
        if host.running() == "nervous":
            host.handle_event(ev.ReleaseRequested("nervous"))
        host.call_after(0.2, release)

    release()
    got = host.fractions(300)
    assert got["nervous"] <= 0.51


@pytest.mark.parametrize("many", [2, 5])
def test_users_are_equal_with_any_number_of_clients(host: SimulatedHost, many: int) -> None:
    host.start_client("single", user="one")
    for number in range(many):
        host.start_client(f"c{number}", user="other")
    host.run(30)
    got = host.fractions(40 * QUANTUM_SECONDS)
    assert got.pop("single") == pytest.approx(0.5, abs=0.03)
    assert list(got.values()) == pytest.approx([0.5 / many] * many, abs=0.03)


@pytest.mark.parametrize(
    "shares", [(0.8, 0.2), (0.8, 0.0), (0.5, 0.3, 0.2), (0.6, 0.2), (0.5, 0.0, 0.0), (0.1, 0.1), (1.0, 0.0)]
)
def test_shares_are_floors_in_each_minute(host: SimulatedHost, shares: tuple[float, ...]) -> None:
    """Time that no share guarantees is divided equally; a device that is guaranteed whole leaves `max_wait` only."""
    for number, share in enumerate(shares):
        host.start_client(f"c{number}", share=share)
    host.run(30)
    for _ in range(4):
        assert all(got >= share - 0.05 for got, share in zip(host.fractions(60).values(), shares, strict=True))
    left = (1 - sum(shares)) / len(shares)
    expected = {f"c{number}": share + left for number, share in enumerate(shares)}
    assert host.fractions(300) == pytest.approx(expected, abs=0.03)


def test_user_has_the_guaranteed_shares_of_its_clients_and_an_equal_part_of_the_rest(host: SimulatedHost) -> None:
    host.start_client("guaranteed", user="one", share=0.4)
    for number in range(3):
        host.start_client(f"c{number}", user="other")
    host.run(30)
    got = host.fractions(60 * QUANTUM_SECONDS)
    assert got.pop("guaranteed") == pytest.approx(0.4 + 0.3, abs=0.03)
    assert list(got.values()) == pytest.approx([0.1] * 3, abs=0.03)


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_short_cells_go_first_beside_a_large_share(host: SimulatedHost, share: float) -> None:
    host.start_client("guaranteed", share=0.8)
    short = host.start_client("short", share=share, busy=False)
    host.run(30)
    waits = thinking(host, short, 0.3, 10.0)
    host.run(300)
    assert len(waits) > 20
    assert max(waits) <= MIN_QUANTUM_SECONDS + 1e-6


def test_cut_work_gets_no_more_than_its_share(host: SimulatedHost) -> None:
    host.start_client("guaranteed", share=0.8)
    cut = host.start_client("cut", share=0.2, busy=False)
    thinking(host, cut, 0.25, 0.0)
    host.run(30)
    assert host.fractions(300)["guaranteed"] >= 0.78


def test_old_usage_decays(host: SimulatedHost) -> None:
    """An hour of computing in the morning counts for nothing in the afternoon."""
    morning = host.start_client("morning")
    host.run(3600)
    morning.busy = False
    host.handle_event(ev.ReleaseRequested("morning"))
    host.stop_waiting(morning)
    host.run(3 * 3600)
    host.start_client("long")
    host.run(60)
    host.wait_at_gate(morning)
    assert host.run_until(lambda: host.running() == "morning") <= MIN_QUANTUM_SECONDS


def test_wait_is_at_most_max_wait_and_one_turn_of_each_earlier_client() -> None:
    """New clients without usage come all the time. Without the bound, the long client would never run again."""
    max_wait = 20.0
    host = host_of("gpu", policy="interactive", time_quantum=1.0, max_wait=max_wait)
    host.start_client("long")
    host.run(60)
    waits: list[float] = []
    for number in range(120):
        host.start_client(f"newcomer {number}")
        host.run(1.0)
        if number >= 4:
            gone = [p for p in host.processes.values() if p.client == f"newcomer {number - 4}"]
            host.kill_process(gone[0])
        long = host.scheduler.clients["long"]
        waits.append(long.wait_seconds_at(host.now) if long.waiting_since is None else host.now - long.waiting_since)
        if long.waiting_since is not None:
            assert host.now - long.waiting_since <= max_wait + 6 * 1.0
    assert max(waits) > max_wait / 2, "the client did have to wait"
    assert host.scheduler.clients["long"].turn_count > 3


def thinking(host: SimulatedHost, process: SimulatedProcess, length: float, pause: float) -> list[float]:
    """Run cells of `length` with pauses between them for ever, and return a list that grows by the wait of each."""
    waits: list[float] = []

    def again() -> None:
        waited = host.scheduler.clients[process.client].wait_seconds

        def done() -> None:
            waits.append(host.scheduler.clients[process.client].wait_seconds - waited)
            host.call_after(pause, again)

        host.run_cell(process, length, done)

    again()
    return waits


@pytest.mark.parametrize("begins", [0.0, 0.5, 15.0], ids=lambda seconds: f"newcomer-{seconds:g}s-old")
def test_use_of_an_idle_device_is_free(host: SimulatedHost, begins: float) -> None:
    """A notebook works for 20 s while no other client waits for the device, and does not wait for a later client."""
    notebook = host.start_client("notebook", busy=False)
    done: list[float] = []
    host.run_cell(notebook, 20.0, lambda: done.append(host.now))
    host.run_until(lambda: bool(done))
    host.start_client("newcomer")
    host.run(begins)
    waits = thinking(host, notebook, 0.02, 2.0)
    host.run(300)
    assert len(waits) > 100
    assert max(waits) <= MIN_QUANTUM_SECONDS + 1e-6


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("length", [0.1, 1.0])
def test_short_cells_start_at_once_despite_endless_jobs(host: SimulatedHost, jobs: int, length: float) -> None:
    for number in range(jobs):
        host.start_client(f"job {number}")
    host.run(30)
    waits = thinking(host, host.start_client("notebook", busy=False), length, 4.0)
    host.run(300)
    assert max(waits) <= MIN_QUANTUM_SECONDS * (1 + 2 * length) + 1e-6


def test_cells_that_use_less_than_their_part_do_not_wait_for_long_cells(host: SimulatedHost) -> None:
    """Cells of ten seconds, one after the other, do not count as short because they are many."""
    thinking(host, host.start_client("long cells", busy=False), 10.0, 0.1)
    host.run(30)
    waits = thinking(host, host.start_client("short cells", busy=False), 0.5, 2.0)
    host.run(300)
    assert sorted(waits)[len(waits) * 9 // 10] <= 0.6


@pytest.mark.parametrize(("many", "pause"), [(2, 0.3), (3, 0.5)])
def test_dividing_work_among_many_clients_gains_nothing(host: SimulatedHost, many: int, pause: float) -> None:
    host.start_client("loop", user="one")
    for number in range(many):
        thinking(host, host.start_client(f"cells {number}", user="other", busy=False), 0.25, pause)
    host.run(30)
    assert host.fractions(200)["loop"] >= 0.4


def test_one_client_after_the_other_gains_nothing(host: SimulatedHost) -> None:
    host.start_client("loop", user="one")
    numbers = iter(range(1000))

    def again() -> None:
        process = host.start_client(f"short-lived {next(numbers)}", user="other", busy=False)
        host.run_cell(process, 5.0, lambda: (host.kill_process(process), host.call_after(0.2, again)))  # type: ignore[func-returns-value]

    again()
    host.run(30)
    assert host.fractions(200)["loop"] >= 0.4


def test_uncontended_use_of_a_device_does_not_count_on_another() -> None:
    host = host_of("one", "two", policy="interactive", time_quantum=QUANTUM_SECONDS)
    for name, user, device in (("elsewhere", "ada", "two"), ("here", "ada", "one"), ("other", "bob", "one")):
        host.add_client(name, user=user)
        host.add_process(name, device, busy=True)
    host.run(30)
    since = host.now
    host.run(200)
    granted = host.granted_seconds("one", since)
    assert granted["here"] == pytest.approx(granted["other"], rel=0.06)
