"""Work that is queued far ahead: the end of a turn does not wait for all of it."""

from __future__ import annotations

from .system_host import SystemHost, start_all_busy, stop_all, turn_intervals, wait_until


def test_deep_queue_drains_in_time_under_contention(short_quantum_host: SystemHost) -> None:
    """Two programs that never look: the driver takes a thousand launches of theirs ahead, two seconds of work."""
    programs = [short_quantum_host.program("deep"), short_quantum_host.program("neighbour")]
    start_all_busy(*programs, look=10**9)

    def drains() -> list[int]:
        found: list[int] = short_quantum_host.status()["coordinator"]["drains"]["buckets"]
        return found

    wait_until(lambda: sum(drains()) >= 20)
    slow = sum(drains()[10:])
    # What the first one had queued before there was a neighbour is worked off as it is.
    assert slow <= 1, f"{slow} of {sum(drains())} drains took more than half a second"
    clients = short_quantum_host.clients()
    assert all(client["gpu_busy_seconds"] > 0 and client["drain"]["max_ms"] > 0 for client in clients.values())
    stop_all(*programs)
    assert short_quantum_host.overlap([programs[0]], [programs[1]]) == 0
    assert len(turn_intervals(*(short_quantum_host.executions(program) for program in programs))) >= 10
