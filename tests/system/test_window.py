"""Work that is queued far ahead: the end of a turn does not wait for all of it."""

from __future__ import annotations

from .host import Host, all_busy, eventually, stop_all, turns


def test_a_deep_queue_drains_in_time_beside_a_busy_neighbour(quick: Host) -> None:
    """Two programs that never look: the driver takes a thousand launches of theirs ahead, two seconds of work."""
    programs = [quick.program("deep"), quick.program("neighbour")]
    all_busy(*programs, look=10**9)

    def drains() -> list[int]:
        found: list[int] = quick.status()["coordinator"]["drains"]["buckets"]
        return found

    eventually(lambda: sum(drains()) >= 20)
    slow = sum(drains()[10:])
    # What the first one had queued before there was a neighbour is worked off as it is.
    assert slow <= 1, f"{slow} of {sum(drains())} drains took more than half a second"
    clients = quick.clients()
    assert all(client["gpu_busy_seconds"] > 0 and client["drain"]["max_ms"] > 0 for client in clients.values())
    stop_all(*programs)
    assert quick.overlap([programs[0]], [programs[1]]) == 0
    assert len(turns(*(quick.executions(program) for program in programs))) >= 10
