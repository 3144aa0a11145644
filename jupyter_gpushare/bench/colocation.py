"""Two bursty clients that fit on the device together, with the coordinator against without a scheduler."""

from __future__ import annotations

from typing import Any

from .support import memory_holders, progress

_BURST_SECONDS = 0.05
_SECONDS = 4.0


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Return `{"ratio", "shared_s", "unscheduled_s", "moved_bytes"}` with real seconds until both clients are done.

    Each client alternates between 50 ms of work on the device and 50 ms without work.
    """
    seconds = float(rounds or _SECONDS)
    ways = progress.report_steps((True, False), lambda shared: "shared" if shared else "not scheduled")
    (shared, moved), (bare, _) = (_run(device, seconds, shared=way) for way in ways)
    return {
        "card": f"simulated, {memory_holders.CARD_NAME}" if device == "sim" else "real",
        "ratio": round(shared / bare, 3),
        "shared_s": round(shared, 2),
        "unscheduled_s": round(bare, 2),
        "moved_bytes": moved,
    }


def _run(device: str, seconds: float, *, shared: bool) -> tuple[float, int]:
    cap, slowed = memory_holders.shared_bytes_and_time_factor(device)
    with (
        memory_holders.bench_host(device, sharing_options=()) as environment,
        memory_holders.two_holders(environment, cap // 4, cap // 32, shared=shared) as programs,
    ):
        ran = memory_holders.run_concurrently(
            programs, "job", seconds / slowed, _BURST_SECONDS / slowed, _BURST_SECONDS
        )
        moved = [memory_holders.transferred(environment, program.label) for program in programs] if shared else []
    bytes_moved = sum(int(one["evicted_bytes"] + one["restored_bytes"]) for one in moved)
    return memory_holders.elapsed_seconds(ran), bytes_moved
