"""Clients that run at the same time, when their coordinator ends and another one comes."""

from __future__ import annotations

import time

from .system_host import SystemHost, wait_until


def test_clients_that_run_together_go_on_without_a_coordinator_and_are_found_by_the_next(host: SystemHost) -> None:
    """First as they were, later in turns by lock files; a newcomer joins them there, and nobody is lost."""
    host.start_coordinator("--sharing", "packed", "--time-quantum", "0.2")
    together = [host.program("one"), host.program("other")]
    for program in together:
        program.busy()
    wait_until(lambda: {client["phase"] for client in host.clients().values()} == {"running"})
    host.kill_coordinator()
    killed = time.monotonic_ns()
    third = host.program("third")
    wait_until(lambda: host.worked_since(killed + int(2e9), *together))
    third.start_busy()  # only now: nobody has told it a quantum, so its turn is one of 30 s
    wait_until(lambda: host.worked_since(killed, third))
    host.start_coordinator("--sharing", "packed", "--time-quantum", "0.2")
    wait_until(lambda: [client["phase"] for client in host.clients().values()] == ["running"] * 3)
    adopted = time.monotonic_ns()
    wait_until(lambda: host.worked_since(adopted, *together, third))
    third.result()
    for program in (*together, third):
        program.stop()
