"""Tests of a stopped program and of a refused program.

A stopped program that is next loses its permit, and the others go on. A refused program has turns by the turn lock.
"""

from __future__ import annotations

import itertools
import signal
import time

from jupyter_gpushare.wire.page import MAY, OUT

from .system_host import MOST, GpuProgram, SystemHost, start_all_busy, stop_all, wait_until

PERMIT_CHECK_SECONDS = 0.05  # time that a permit may stay unused


def wait_for_work(host: SystemHost, program: GpuProgram) -> None:
    """Wait for work of the program that begins from now on."""
    moment = time.monotonic_ns()
    wait_until(lambda: any(e.begin_ns > moment for e in host.launches(program)))


def test_stopped_next_program_is_skipped(short_quantum_host: SystemHost) -> None:
    """The stop is as by Ctrl-Z or a debugger. The permit is withdrawn, so the program does not enter afterwards."""
    programs = [short_quantum_host.program(name, part=MOST) for name in ("one", "two", "three")]
    one, two, three = programs
    start_all_busy(*programs)
    free = []
    for _ in range(5):
        stop_while_next(short_quantum_host, two, "two")
        stopped = time.monotonic_ns()
        for program in (three, one, three, one):
            wait_for_work(short_quantum_host, program)
        # The same client may run before and after, if the next client in the queue is slow to come to the gate.
        pairs = itertools.pairwise(short_quantum_host.launches(one, three))
        gaps = [(after.begin_ns - before.end_ns) / 1e9 for before, after in pairs if after.begin_ns > stopped]
        free.append(next((seconds for seconds in gaps if seconds >= PERMIT_CHECK_SECONDS), max(gaps)))
        page = short_quantum_host.page(two)
        assert (page["turn_phase"], page["permit_flags"] & MAY) == (OUT, 0)
        two.send(signal.SIGCONT)
        for program in (two, three, one):
            wait_for_work(short_quantum_host, program)
        assert short_quantum_host.page(two)["turn_epoch"] > page["permit_epoch"], (
            "the program must enter by another permit"
        )
    stop_all(*programs)
    assert min(free) >= PERMIT_CHECK_SECONDS, free
    assert min(free) < 0.2, free
    assert short_quantum_host.overlap(*([program] for program in programs)) == 0


def test_refused_client_waits_for_one_turn_only(host: SystemHost) -> None:
    """The refused client has turns by the turn lock only, and the coordinator leaves the device to it."""
    host.start_coordinator("--time-quantum", "0.2", "--GpuShare.max_clients=1")
    one, other = host.program("one"), host.program("other", cuda=False)
    one.busy()
    other.start("cuda = Cuda()")
    other.start_busy()
    wait_for_work(host, other)
    assert list(host.clients()) == ["one"]
    assert (other.result(), other.result()) == (None, None)
    other.stop()
    other.end()
    wait_for_work(host, one)
    one.stop()
    assert host.overlap([one], [other]) == 0


def stop_while_next(host: SystemHost, program: GpuProgram, client: str) -> None:
    """Stop the program while its client is first in the queue and another client runs."""
    while True:
        wait_until(lambda: host.status()["devices"][0]["queue"][:1] == [client])
        program.send(signal.SIGSTOP)
        if host.phase(client) == "waiting" and host.page(program)["turn_phase"] == OUT:
            return
        program.send(signal.SIGCONT)  # the stop came too late: the client's turn has begun
