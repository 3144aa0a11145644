"""The next client has its permit before the turn ends, so the coordinator may be dead or stopped at the hand-over."""

from __future__ import annotations

import signal
import time

import pytest

from jupyter_gpushare.wire import messages

from .host import Host, eventually, stop_all


def in_mid_turn(host: Host, runs: str, waits: str) -> bool:
    """Whether one client has just begun its turn, and the other is next."""
    clients = host.clients()
    grants = host.status()["devices"][0]["grants"]
    fresh = [grant for grant in grants if grant["client"] == runs and grant["held_seconds"] < 0.3]
    return bool(fresh) and clients[waits]["phase"] == "waiting"


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_the_next_turn_comes_without_the_coordinator(quick: Host, death: signal.Signals) -> None:
    quick.ask(messages.Config(changes={"time_quantum": 0.8}))
    one, other = quick.program("one"), quick.program("other")
    one.busy()
    other.start_busy()
    eventually(lambda: in_mid_turn(quick, "one", "other"))
    assert quick.coordinator
    quick.coordinator.send_signal(death)
    moment = time.monotonic_ns()
    eventually(lambda: quick.worked_since(moment, other))
    assert "take turns without a coordinator" not in quick.log_text(), "the permit was to do"
    other.result()
    if death == signal.SIGSTOP:
        quick.coordinator.send_signal(signal.SIGCONT)
    else:
        quick.coordinator.wait()
        quick.start_coordinator("--time-quantum", "0.1")
    back = time.monotonic_ns()
    for program in (one, other, one):
        eventually(lambda: quick.worked_since(back, program))  # noqa: B023 - called before the next round
    stop_all(one, other)
    assert quick.overlap([one], [other]) == 0
