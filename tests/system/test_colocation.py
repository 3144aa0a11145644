"""Test of colocated clients when their coordinator ends and another one starts."""

from __future__ import annotations

import time

from .system_host import SystemHost, wait_until


def test_colocated_clients_go_on_without_a_coordinator_and_join_the_next_one(host: SystemHost) -> None:
    """First the clients stay colocated. Later they take turns by lock files, also with a new client."""
    host.start_coordinator("--sharing", "packed", "--time-quantum", "0.2")
    colocated = [host.program("one"), host.program("other")]
    for program in colocated:
        program.busy()
    wait_until(lambda: {client["phase"] for client in host.clients().values()} == {"running"})
    host.kill_coordinator()
    killed = time.monotonic_ns()
    third = host.program("third")
    wait_until(lambda: host.worked_since(killed + int(2e9), *colocated))
    third.start_busy()  # not earlier: it has no quantum from a coordinator, so its turn takes 30 s
    wait_until(lambda: host.worked_since(killed, third))
    host.start_coordinator("--sharing", "packed", "--time-quantum", "0.2")
    wait_until(lambda: [client["phase"] for client in host.clients().values()] == ["running"] * 3)
    adopted = time.monotonic_ns()
    wait_until(lambda: host.worked_since(adopted, *colocated, third))
    third.result()
    for program in (*colocated, third):
        program.stop()
