"""Test of the handoff without a coordinator, by the permit that the next client has before the turn ends."""

from __future__ import annotations

import re
import signal
import time

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import IN

from .system_host import MOST, GpuProgram, SystemHost, stop_all, wait_until


def in_mid_turn(host: SystemHost, runs: str, waits: str) -> bool:
    """Return whether one client has just begun its turn, and the other client is next."""
    clients = host.clients()
    grants = host.status()["devices"][0]["grants"]
    fresh = [grant for grant in grants if grant["client"] == runs and grant["granted_seconds"] < 0.3]
    return bool(fresh) and clients[waits]["phase"] == "waiting"


def stop_in_mid_turn(host: SystemHost, one: GpuProgram) -> int:
    """Stop the coordinator in a turn of `one`, while the client `other` is next, and return the length of the log."""
    assert host.coordinator
    while True:
        wait_until(lambda: in_mid_turn(host, "one", "other"))
        host.coordinator.send_signal(signal.SIGSTOP)
        known, page = len(host.log_text()), host.page(one)
        if page["turn_phase"] == IN and time.monotonic_ns() < page["permit_deadline_ns"]:
            return known
        host.coordinator.send_signal(signal.SIGCONT)  # the stop came too late, on a busy machine


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSTOP])
def test_handoff_needs_no_coordinator(short_quantum_host: SystemHost, death: signal.Signals) -> None:
    short_quantum_host.request(messages.Config(changes={"time_quantum": 0.8}))
    one, other = (short_quantum_host.program(name, part=MOST) for name in ("one", "other"))
    one.busy()
    other.start_busy()
    known = stop_in_mid_turn(short_quantum_host, one)
    assert short_quantum_host.coordinator
    short_quantum_host.coordinator.send_signal(death)

    def epochs() -> list[int]:
        """Return the epochs of the other client's turns since then; a turn without a coordinator has epoch 0."""
        openings = re.findall(rf"\[{other.pid}\].*opened the gate, epoch (\d+)", short_quantum_host.log_text()[known:])
        return [int(epoch) for epoch in openings]

    assert wait_until(epochs)[0] > 0, "the permit must be enough"
    other.result()
    if death == signal.SIGSTOP:
        short_quantum_host.coordinator.send_signal(signal.SIGCONT)
    else:
        short_quantum_host.coordinator.wait()
        short_quantum_host.start_coordinator("--time-quantum", "0.1")
    resumed = time.monotonic_ns()
    for program in (one, other, one):
        wait_until(lambda: short_quantum_host.worked_since(resumed, program))  # noqa: B023 - called before the next round
    stop_all(one, other)
    assert short_quantum_host.overlap([one], [other]) == 0
