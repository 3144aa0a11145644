"""Clients that run at the same time: an offline one beside an online one is held to what that one does not miss."""

from __future__ import annotations

import time

from ..native.simlog import Execution
from .host import Host, Program, eventually, turns


def launches_lately(host: Host, program: Program, seconds: float = 2.0) -> int:
    """Executions that began in the last seconds, by the driver's time stamps."""
    since = time.monotonic_ns() - int(seconds * 1e9)
    return sum(execution.begin_ns >= since for execution in host.executions(program))


def test_an_offline_client_is_limited_beside_an_online_one_and_freed_when_that_is_idle(host: Host) -> None:
    host.start_coordinator("--sharing", "packed", "--time-quantum", "0.2")
    offline, online = host.program("offline", "service=offline"), host.program("online")
    offline.busy(launch=0.002)
    eventually(lambda: launches_lately(host, offline) >= 200)
    online.busy(launch=0.002, look=1, pause=0.004)
    # The online client's rate alone is measured first, with the offline one all but stopped.
    eventually(lambda: launches_lately(host, online) >= 100 and launches_lately(host, offline) <= 10)
    phases = {name: client["phase"] for name, client in host.clients().items()}
    assert phases == {"offline": "running", "online": "running"}
    online.stop()
    eventually(lambda: launches_lately(host, offline) >= 200)
    offline.stop()


def busy_since(host: Host, programs: list[Program], moment: int) -> bool:
    return all(any(e.begin_ns > moment for e in host.executions(program)) for program in programs)


def test_clients_that_run_together_go_on_without_a_coordinator_and_are_found_by_the_next(host: Host) -> None:
    """First as they were, later in turns by lock files; a newcomer joins them there, and nobody is lost."""
    host.start_coordinator("--sharing", "packed", "--time-quantum", "0.2")
    together = [host.program("one"), host.program("other")]
    for program in together:
        program.busy()
    eventually(lambda: {client["phase"] for client in host.clients().values()} == {"running"})
    host.kill_coordinator()
    killed = time.monotonic_ns()
    third = host.program("third")
    eventually(lambda: busy_since(host, together, killed + int(2e9)))
    third.start_busy()  # only now: nobody has told it a quantum, so its turn is one of 30 s
    eventually(lambda: busy_since(host, [third], killed))
    host.start_coordinator("--sharing", "packed", "--time-quantum", "0.2")
    eventually(lambda: [client["phase"] for client in host.clients().values()] == ["running"] * 3)
    adopted = time.monotonic_ns()
    eventually(lambda: busy_since(host, [*together, third], adopted))
    third.result()
    for program in (*together, third):
        program.stop()


def test_a_coordinator_that_is_soon_back_finds_clients_running_together(host: Host) -> None:
    """Before they have gone over to lock files: nobody's gate closes, and who must be alone waits for all of them."""
    host.start_coordinator("--sharing", "packed", "--time-quantum", "0.2")
    together = [host.program("one"), host.program("other")]
    for program in together:
        program.busy()
    eventually(lambda: {client["phase"] for client in host.clients().values()} == {"running"})
    host.kill_coordinator()
    host.start_coordinator("--sharing", "exclusive", "--time-quantum", "0.2")
    eventually(lambda: len(host.clients()) == 2)
    moment = time.monotonic_ns()
    eventually(lambda: len(turns(*since(host, together, moment))) >= 6)
    for program in together:
        program.stop()


def since(host: Host, programs: list[Program], moment: int) -> list[list[Execution]]:
    return [[e for e in host.executions(program) if e.begin_ns > moment] for program in programs]
