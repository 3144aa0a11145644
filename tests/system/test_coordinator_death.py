"""The coordinator is killed: nobody loses anything, turns go on, and the next coordinator takes over what it finds."""

from __future__ import annotations

import signal
import time

import pytest

from jupyter_gpushare.wire import messages

from .held import mapped
from .host import Host, Program, eventually, stop_all, turns
from .test_handover import in_mid_turn


def run_by_permit(host: Host, *programs: Program) -> bool:
    """Whether the last turn of each program, by the shim's log, began by a coordinator's permit."""
    openings = [line for line in host.log_text().splitlines() if "opened the gate, epoch " in line]
    last = {pid: [line for line in openings if f"[{pid}]" in line][-1:] for pid in (one.pid for one in programs)}
    return all(found and not found[0].endswith(" 0") for found in last.values())


@pytest.mark.parametrize("moment", ["running", "draining", "nobody runs"])
def test_turns_go_on_after_a_kill(quick: Host, moment: str) -> None:
    one, other = quick.program("one"), quick.program("other")
    quick.ask(messages.SetQuota(client="one", changes={"memory": "100MiB", "share": 0.25}))
    if moment == "nobody runs":
        quick.kill_coordinator()
        killed = time.monotonic_ns()
        one.start_busy()
        other.start_busy()
    else:
        long = {"launch": 0.3, "look": 1} if moment == "draining" else {}
        one.busy(**long)
        other.start_busy()
        eventually(lambda: quick.phase("one") == moment)
        quick.kill_coordinator()
        killed = time.monotonic_ns()
    seconds = 10 if moment == "draining" else 5  # four turns of long launches
    eventually(lambda: quick.took_turns_since(killed, one, other), seconds - (time.monotonic_ns() - killed) / 1e9)
    other.result()
    if moment == "nobody runs":
        one.result()

    quick.start_coordinator("--time-quantum", "0.1")
    eventually(lambda: len(quick.clients()) == 2)
    adopted = time.monotonic_ns()
    clients = quick.clients()
    assert {client["label"] for client in clients.values()} == {"one", "other"}
    assert clients["one"]["quota"]["memory"] == 100 << 20
    assert clients["one"]["quota"]["share"] == 0.25
    assert clients["other"]["quota"]["memory"] is None
    eventually(lambda: run_by_permit(quick, one, other))
    assert all(client["allocated"] == 4096 for client in clients.values())
    eventually(lambda: quick.took_turns_since(adopted, one, other))
    stop_all(one, other)
    assert quick.overlap([one], [other]) == 0


def test_the_last_permit_stands_until_the_rule_without_a_coordinator(quick: Host) -> None:
    """A stopped coordinator accepts connections, and answers no hello. The turn ends at its deadline all the same, and
    the next client follows by its permit."""
    quick.ask(messages.Config(changes={"time_quantum": 7.0}))
    one, other = quick.program("one"), quick.program("other")
    one.busy()
    other.start_busy()
    eventually(lambda: in_mid_turn(quick, "one", "other"))
    eventually(lambda: quick.status()["devices"][0]["grants"][0]["held_seconds"] > 1.5)
    assert quick.coordinator
    quick.coordinator.send_signal(signal.SIGSTOP)
    stopped = time.monotonic_ns()
    eventually(lambda: quick.worked_since(stopped, other), 15)
    lines = quick.log_text().splitlines()
    lost = max(number for number, line in enumerate(lines) if "heartbeat has stopped" in line)
    openings = [line for line in lines[lost:] if f"[{other.pid}]" in line and "opened the gate, epoch " in line]
    assert openings and int(openings[0].split()[-1]) > 0, "by its permit, without contact"
    quick.coordinator.send_signal(signal.SIGCONT)
    quick.ask(messages.Config(changes={"time_quantum": 0.1}))
    other.result()
    stop_all(one, other)
    assert quick.overlap([one], [other]) == 0


def test_a_stopped_coordinator_that_wakes_up_finds_others_at_work(quick: Host) -> None:
    """The client that has a permit follows at the deadline and runs on, until the heartbeat has been missed for 5 s and
    2 s more are over. What the coordinator thinks that it has granted is then no longer its to end or give away."""
    quick.ask(messages.Config(changes={"time_quantum": 0.8}))
    one, other = quick.program("one"), quick.program("other")
    one.busy()
    other.start_busy()
    eventually(lambda: in_mid_turn(quick, "one", "other"))
    coordinator = quick.coordinator
    assert coordinator
    coordinator.send_signal(signal.SIGSTOP)
    stopped = time.monotonic_ns()
    eventually(lambda: quick.worked_since(stopped, other))
    assert quick.page(other)["turn_epoch"] > 0, "by its permit"
    eventually(lambda: quick.took_turns_since(stopped, one, other), 15)
    rows = turns(quick.executions(one), quick.executions(other))
    (first, *_), (second, _, ended), *_ = (row for row in rows if row[2] > stopped)
    assert (first, second) == (0, 1)
    assert (ended - stopped) / 1e9 > 5
    assert [quick.page(program)["turn_epoch"] for program in (one, other)] == [0, 0]
    written = mapped(coordinator.pid, "gpushare-page")
    assert written and not written & (mapped(one.pid, "gpushare-page") | mapped(other.pid, "gpushare-page"))
    coordinator.send_signal(signal.SIGCONT)
    awake = time.monotonic_ns()
    other.result()
    eventually(lambda: quick.took_turns_since(awake, one, other))
    eventually(lambda: run_by_permit(quick, one, other))
    stop_all(one, other)
    assert quick.overlap([one], [other]) == 0
