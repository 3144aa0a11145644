"""Two clients that hold 1.8 times what the device has: both at once, against one after the other."""

from __future__ import annotations

from typing import Any

from . import holders

_SECONDS = 90.0  # of the device, for each client's job on a whole card


def measure(device: str, rounds: int) -> dict[str, Any]:
    """`{"q5_busy", "q5_half", "q30_busy", …}`: total time over one after the other, for quanta of 5 and 30 s, with
    clients that are always busy and clients that use the device for 10 s and then not for 10 s; `q5_aim` is what the
    link allows the busy ones."""
    mode = "swap"
    figures: dict[str, Any] = {
        "card": f"simulated, {holders.CARD}" if device == "sim" else "real",
        "mode": mode,
    }
    cap, _ = holders.scale(device)
    link = 25e9 if device == "sim" else None
    serial = {half: _run(device, 30, mode, half, together=False, rounds=rounds) for half in (False, True)}
    for quantum in (5, 30):
        for half in (False, True):
            total = _run(device, quantum, mode, half, together=True, rounds=rounds)
            figures[f"q{quantum}_{'half' if half else 'busy'}"] = round(total / serial[half], 3)
        if link:
            shrunk = holders.SHRUNK if device == "sim" else 1
            figures[f"q{quantum}_aim"] = round(1 + 1.1 * (0.95 * cap / link) / (quantum / shrunk), 3)
    return figures


def _run(device: str, quantum: int, mode: str, half: bool, *, together: bool, rounds: int) -> float:
    """Real seconds from the first launch to the last."""
    cap, slowed = holders.scale(device)
    shrunk = holders.SHRUNK if device == "sim" else 1
    piece = cap // 32
    size = int(cap * 0.95 * 15 / 16) // piece * piece
    sweep = (10 if half else 0.5) / shrunk
    seconds = (rounds or _SECONDS) / shrunk
    options = ["--time-quantum", str(quantum / shrunk * slowed), "--pinned-memory", f"{size >> 20}MiB"]
    with holders.host(device, *options) as environment:
        programs = [holders.Holder(environment, name, "--memory-mode", mode) for name in ("one", "two")]
        try:
            for program in programs:
                program.end()
                program.do("hold", size, piece)
            words = ("job", seconds, sweep, sweep * slowed if half else 0)
            ran = []
            if together:
                for program in programs:
                    program.begin(*words)
                ran = [program.end() for program in programs]
            else:
                ran = [program.do(*words) for program in programs]
        finally:
            for program in programs:
                program.close()
    return float(max(one["ended"] for one in ran) - min(one["began"] for one in ran))
