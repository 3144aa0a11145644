"""Clients that run at the same time: an offline one beside an online one is held to what that one does not miss."""

from __future__ import annotations

import time

from .host import Host, Program, eventually


def launches_lately(host: Host, program: Program, seconds: float = 2.0) -> int:
    """Executions that began in the last seconds, by the driver's time stamps."""
    since = time.monotonic_ns() - int(seconds * 1e9)
    return sum(execution.begin_ns >= since for execution in host.executions(program))


def test_an_offline_client_is_limited_beside_an_online_one_and_freed_when_that_is_idle(host: Host) -> None:
    host.start_coordinator("--sharing", "packed")
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
