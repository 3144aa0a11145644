"""Test of work that is queued far ahead: the end of a turn does not wait for all of it."""

from __future__ import annotations

from .system_host import MOST, SystemHost, start_all_busy, stop_all, turn_intervals, wait_until


def test_deep_queue_drains_in_time_under_contention(short_quantum_host: SystemHost) -> None:
    """Two programs never wait for the device, so the driver queues a thousand launches of each: 2 s of work."""
    programs = [short_quantum_host.program(name, part=MOST) for name in ("one", "other")]
    start_all_busy(*programs, sync_every=10**9)

    def drains() -> list[int]:
        found: list[int] = short_quantum_host.status()["coordinator"]["drains"]["buckets"]
        return found

    wait_until(lambda: sum(drains()) >= 20)
    found = drains()
    slow = sum(found[10:])
    # A busy machine delays some drains, and the first program had queued work before the turn was contended.
    assert slow <= sum(found) / 4, f"{slow} of {sum(found)} drains took more than half a second"
    clients = short_quantum_host.clients()
    assert all(client["gpu_busy_seconds"] > 0 and client["drain"]["max_ms"] > 0 for client in clients.values())
    stop_all(*programs)
    assert short_quantum_host.overlap([programs[0]], [programs[1]]) == 0
    assert len(turn_intervals(*(short_quantum_host.launches(program) for program in programs))) >= 10
