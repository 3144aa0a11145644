"""Tests of a killed coordinator: programs lose nothing, turns go on, and the next coordinator adopts them."""

from __future__ import annotations

import signal
import time

import pytest

from jupyter_gpushare.wire import messages

from .resource_counts import mapped_memfds
from .system_host import MOST, GpuProgram, SystemHost, stop_all, turn_intervals, wait_until
from .test_handoff import in_mid_turn, stop_in_mid_turn


def run_by_permit(host: SystemHost, *programs: GpuProgram) -> bool:
    """Return whether the last turn of each program began by a coordinator's permit, according to the shim's log."""
    openings = [line for line in host.log_text().splitlines() if "opened the gate, epoch " in line]
    last = {pid: [line for line in openings if f"[{pid}]" in line][-1:] for pid in (one.pid for one in programs)}
    return all(found and not found[0].endswith(" 0") for found in last.values())


@pytest.mark.parametrize("moment", ["running", "draining", "no turn"])
def test_turns_continue_after_the_coordinator_is_killed(short_quantum_host: SystemHost, moment: str) -> None:
    one, other = (short_quantum_host.program(name, part=MOST) for name in ("one", "other"))
    short_quantum_host.request(messages.SetQuota(client="one", changes={"memory": "200MiB", "share": 0.25}))
    if moment == "no turn":
        short_quantum_host.kill_coordinator()
        killed = time.monotonic_ns()
        one.start_busy()
        other.start_busy()
    else:
        long = {"launch": 0.3, "sync_every": 1} if moment == "draining" else {}
        one.busy(**long)
        other.start_busy()
        wait_until(lambda: short_quantum_host.phase("one") == moment)
        short_quantum_host.kill_coordinator()
        killed = time.monotonic_ns()
    wait_until(lambda: short_quantum_host.took_turns_since(killed, one, other))
    other.result()
    if moment == "no turn":
        one.result()

    short_quantum_host.start_coordinator("--time-quantum", "0.1")
    wait_until(lambda: len(short_quantum_host.clients()) == 2)
    adopted = time.monotonic_ns()
    clients = short_quantum_host.clients()
    assert {client["label"] for client in clients.values()} == {"one", "other"}
    assert clients["one"]["quota"]["memory"] == 200 << 20
    assert clients["one"]["quota"]["share"] == 0.25
    assert clients["other"]["quota"]["memory"] is None
    wait_until(lambda: run_by_permit(short_quantum_host, one, other))
    assert all(client["allocated"] > MOST * short_quantum_host.memory for client in clients.values())
    wait_until(lambda: short_quantum_host.took_turns_since(adopted, one, other))
    stop_all(one, other)
    assert short_quantum_host.overlap([one], [other]) == 0


# On a busy machine the agents may be late by more than the 1.3 s in which the permit stands without a connection.
@pytest.mark.nightly
@pytest.mark.exclusive
def test_the_last_permit_stands_until_the_rule_without_a_coordinator(short_quantum_host: SystemHost) -> None:
    """A stopped coordinator accepts connections, and answers no hello.

    The turn ends at its deadline all the same, and the next client follows by its permit.
    """
    short_quantum_host.request(messages.Config(changes={"policy": "fcfs", "time_quantum": 7.0}))
    one, other = (short_quantum_host.program(name, part=MOST) for name in ("one", "other"))
    one.busy()
    other.start_busy()
    wait_until(lambda: in_mid_turn(short_quantum_host, "one", "other"))
    # The deadline must come after the heartbeat has been away for 5 s, and well before the rule without a coordinator.
    wait_until(lambda: short_quantum_host.page(one)["permit_deadline_ns"] < time.monotonic_ns() + 5_700_000_000)
    assert short_quantum_host.coordinator
    short_quantum_host.coordinator.send_signal(signal.SIGSTOP)
    stopped = time.monotonic_ns()
    wait_until(lambda: short_quantum_host.worked_since(stopped, other))
    lines = short_quantum_host.log_text().splitlines()
    lost = max(number for number, line in enumerate(lines) if "heartbeat has stopped" in line)
    openings = [line for line in lines[lost:] if f"[{other.pid}]" in line and "opened the gate, epoch " in line]
    assert openings and int(openings[0].split()[-1]) > 0, "the client must enter by its permit, without a connection"
    short_quantum_host.coordinator.send_signal(signal.SIGCONT)
    short_quantum_host.request(messages.Config(changes={"time_quantum": 0.1}))
    other.result()
    stop_all(one, other)
    assert short_quantum_host.overlap([one], [other]) == 0


def test_resumed_coordinator_finds_later_turns(short_quantum_host: SystemHost) -> None:
    """The client with a permit follows at the deadline, and runs until 2 s after the heartbeat has been away for 5 s.

    The grants in the state of the stopped coordinator are void from then on.
    """
    short_quantum_host.request(messages.Config(changes={"time_quantum": 0.8}))
    one, other = (short_quantum_host.program(name, part=MOST) for name in ("one", "other"))
    one.busy()
    other.start_busy()
    stop_in_mid_turn(short_quantum_host, one)
    coordinator = short_quantum_host.coordinator
    assert coordinator
    stopped = time.monotonic_ns()
    wait_until(lambda: short_quantum_host.worked_since(stopped, other))
    assert short_quantum_host.page(other)["turn_epoch"] > 0, "the client must enter by its permit"
    wait_until(lambda: short_quantum_host.took_turns_since(stopped, one, other))
    rows = turn_intervals(short_quantum_host.launches(one), short_quantum_host.launches(other))
    (first, *_), (second, _, ended), *_ = (row for row in rows if row[2] > stopped)
    assert (first, second) == (0, 1)
    assert (ended - stopped) / 1e9 > 5
    assert [short_quantum_host.page(program)["turn_epoch"] for program in (one, other)] == [0, 0]
    written = mapped_memfds(coordinator.pid, "gpushare-page")
    assert written and not written & (
        mapped_memfds(one.pid, "gpushare-page") | mapped_memfds(other.pid, "gpushare-page")
    )
    coordinator.send_signal(signal.SIGCONT)
    resumed = time.monotonic_ns()
    other.result()
    wait_until(lambda: short_quantum_host.took_turns_since(resumed, one, other))
    wait_until(lambda: run_by_permit(short_quantum_host, one, other))
    stop_all(one, other)
    assert short_quantum_host.overlap([one], [other]) == 0
