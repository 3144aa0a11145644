"""Programs that are stopped, or turned away: turns go on without them. Kills: `tests/chaos/`."""

from __future__ import annotations

import itertools
import signal
import time

from jupyter_gpushare.wire.page import MAY, OUT

from .system_host import GpuProgram, SystemHost, start_all_busy, stop_all, wait_until

PATIENCE = 0.05  # seconds that a permit may stay unused


def works_again(host: SystemHost, program: GpuProgram) -> None:
    """Wait for work of the program that begins from now on."""
    moment = time.monotonic_ns()
    wait_until(lambda: any(e.begin_ns > moment for e in host.executions(program)))


def test_stopped_next_program_is_skipped(short_quantum_host: SystemHost) -> None:
    """Stopped by Ctrl-Z or a debugger. Its permit is withdrawn, so the program begins no turn when it goes on."""
    programs = [short_quantum_host.program(name) for name in ("one", "two", "three")]
    one, two, three = programs
    start_all_busy(*programs)
    free = []
    for _ in range(5):
        stop_while_next(short_quantum_host, two, "two")
        stopped = time.monotonic_ns()
        for program in (three, one, three, one):
            works_again(short_quantum_host, program)
        # The same client may run before and after, where the next one in line is slow to come back to the gate.
        pairs = itertools.pairwise(short_quantum_host.executions(one, three))
        gaps = [(after.begin_ns - before.end_ns) / 1e9 for before, after in pairs if after.begin_ns > stopped]
        free.append(next((seconds for seconds in gaps if seconds >= PATIENCE), max(gaps)))
        page = short_quantum_host.page(two)
        assert (page["turn_phase"], page["permit_flags"] & MAY) == (OUT, 0)
        two.send(signal.SIGCONT)
        for program in (two, three, one):
            works_again(short_quantum_host, program)
        assert short_quantum_host.page(two)["turn_epoch"] > page["permit_epoch"], "by another permit"
    stop_all(*programs)
    assert min(free) >= PATIENCE, free
    assert min(free) < 0.2, free
    assert short_quantum_host.overlap(*([program] for program in programs)) == 0


def test_refused_client_waits_for_one_turn_only(host: SystemHost) -> None:
    """It has turns by the device's lock alone, and the coordinator leaves the device to it."""
    host.start_coordinator("--time-quantum", "0.2", "--GpuShare.max_clients=1")
    one, other = host.program("one"), host.program("other", cuda=False)
    one.busy()
    other.start("cuda = Cuda()")
    other.start_busy()
    works_again(host, other)
    assert list(host.clients()) == ["one"]
    assert (other.result(), other.result()) == (None, None)
    other.stop()
    other.end()
    works_again(host, one)
    one.stop()
    assert host.overlap([one], [other]) == 0


def stop_while_next(host: SystemHost, program: GpuProgram, client: str) -> None:
    """Stop the program while its client is first in line and another client runs."""
    while True:
        wait_until(lambda: host.status()["devices"][0]["queue"][:1] == [client])
        program.send(signal.SIGSTOP)
        if host.phase(client) == "waiting":
            return
        program.send(signal.SIGCONT)  # it was faster: its turn has begun
