"""Spacing: a pause after each stretch of work, so that a client uses no more than a part of a device.

AntMan (Xiao et al., OSDI 2020) spaces the launches of an opportunistic job so; the shim does it by
`orders.spacing_ppm` (docs/design.md, "The meter"). Launches so short that nobody notices them need none of it: GPUShare
(Goswami et al., "GPUShare: Fair-Sharing Middleware for GPU Clouds", IPDPSW 2016) predicts how long launches take, and
limits only long ones.
"""

from __future__ import annotations

NOT_SPACED = 0
STOP = 0xFFFFFFFF  # GPUSHARE_SPACING_STOP of page.h
_WEIGHT = 0.3  # of the newest sample in a prediction
_ENOUGH = 20  # launches, before anything is predicted


def pause(run: float, percent: float, duration: float) -> float | None:
    """Seconds to sleep after a step that took `duration`, `run` of them on the device, to use `percent` of it.

    None: nothing may run; ask again later (AntMan's p = 0).
    """
    if percent <= 0:
        return None
    return max(0.0, run * 100 / percent - duration)


def spacing_ppm(fraction: float) -> int:
    """The page's figure for a client that may use `fraction` of the device."""
    if fraction >= 1:
        return NOT_SPACED
    return max(1, round(fraction * 1_000_000)) if fraction > 0 else STOP


class LaunchLength:
    """Predicts how long a client's launches take, from what they took."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # predicted, of one launch
        self._last: tuple[int, float] | None = None

    def add(self, launches: int, gpu_seconds: float) -> None:
        """The client's counters stand at these; those that went back belong to a new process."""
        if self._last is None or launches < self._last[0] or gpu_seconds < self._last[1]:
            self._last = (launches, gpu_seconds)
            return
        count = launches - self._last[0]
        if count < _ENOUGH:
            return
        mean = (gpu_seconds - self._last[1]) / count
        self.seconds = mean if self.seconds is None else (1 - _WEIGHT) * self.seconds + _WEIGHT * mean
        self._last = (launches, gpu_seconds)

    def passes(self, interval: float) -> bool:
        """Whether its launches are predicted to be shorter than `interval` seconds, that of a switch."""
        return self.seconds is not None and self.seconds < interval
