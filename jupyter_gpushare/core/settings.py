"""What admins set, as the scheduler takes it. Times in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from .errors import Refused
from .placement import PlacementSettings

AUTO = "auto"
OR_AUTO = ("time_quantum", "idle_release", "idle_warn", "idle_evict")  # may say so
NEVER = ("idle_warn", "idle_evict", "idle_suspend")  # 0: it does not happen
LONGEST_IDLE = 604800.0
LONGEST_QUANTUM = 30.0  # of those that follow from measurements

EXCLUSIVE, PACKED = "exclusive", "packed"
SHARING = (EXCLUSIVE, AUTO, PACKED)
WAIT, JOIN, INTERRUPT = "wait", "join", "interrupt"
OVERRUN = (WAIT, JOIN, INTERRUPT)


@dataclass(frozen=True)
class Settings:
    """`time_quantum` and `idle_release` may be "auto": from the measured cost of a switch. Here nothing is done about
    idle clients; the defaults of a coordinator are those of its traits."""

    time_quantum: float | str = AUTO
    policy: str = "interactive"
    idle_release: float | str = AUTO
    cell_linger: float = 0.05
    sharing: str = AUTO  # clients whose memory fits together: one after the other, or at the same time
    min_quantum: float = 0.1  # nobody is interrupted before, but by a better service class
    max_wait: float = 300.0  # whoever has waited so long goes first, whatever it had before
    max_hold: float = 600.0  # the longest that a client may keep the devices without working
    idle_warn: float | str = 0.0  # nobody has used a client for so long: it is told; 0: never
    idle_evict: float | str = 0.0  # its memory leaves; "auto": only where memory is short
    idle_suspend: float = 0.0
    switch_overhead: float = 0.05  # what switching may cost of the time, where the quantum is "auto"
    idle_factor: float = 1.0  # how long to wait for more work, in switch costs, where idle_release is "auto"
    tuning: bool = False  # the last two are found out by trial
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    drain_retry: float = 0.1  # not drained by then while a thread waits at the gate: reopen for a slice
    drain_slice: float = 0.02
    drain_steps: int = 16  # so many slices let through one call of each thread; after them come whole ones
    drain_tries: int = 5  # so many whole slices before it is an overrun
    overrun_after: float = 10.0  # draining for longer is reported
    evicting_overrun_after: float = 60.0  # so is memory that leaves for longer: most devices are emptied in 30 s
    overrun: str = WAIT  # for its end; or others join it, or its kernel is interrupted, when patience with it ends
    overrun_patience: float = 30.0  # from when it is reported
    lock_retry: float = 0.01  # how soon to try again a device whose lock somebody else holds, doubling up to 0.04

    def __post_init__(self) -> None:
        for name, lowest, highest in (
            ("time_quantum", 0.001, 86400.0),
            ("idle_release", 0.001, 86400.0),
            ("cell_linger", 0.0, 60.0),
            ("min_quantum", 0.001, LONGEST_QUANTUM),
            ("max_wait", 1.0, 86400.0),
            ("max_hold", 0.0, 86400.0),
            *((name, 1.0, LONGEST_IDLE) for name in NEVER),
            ("drain_retry", 0.001, 60.0),
            ("drain_slice", 0.001, 60.0),
            ("overrun_after", 0.001, 86400.0),
            ("evicting_overrun_after", 0.001, 86400.0),
            ("overrun_patience", 0.0, 86400.0),
            ("lock_retry", 0.001, 60.0),
        ):
            value = getattr(self, name)
            if (value == AUTO and name in OR_AUTO) or (value == 0.0 and name in NEVER):
                continue
            if isinstance(value, str) or not math.isfinite(value) or not lowest <= value <= highest:
                words = (", 0 for never" if name in NEVER else "") + (f', or "{AUTO}"' if name in OR_AUTO else "")
                shown = repr(value) if isinstance(value, str) else f"{value:g}"
                raise Refused(f"{name}={shown} is out of range: allowed are {lowest:g} to {highest:g} seconds{words}")
        for name, low, high in (("switch_overhead", 0.001, 1.0), ("idle_factor", 0.0, 100.0), ("drain_tries", 0, 1000)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise Refused(f"{name}={value:g} is out of range: allowed are {low:g} to {high:g}")
        for name, allowed in (("sharing", SHARING), ("overrun", OVERRUN)):
            if getattr(self, name) not in allowed:
                raise Refused(f"{name}={getattr(self, name)!r} is unknown: allowed are {', '.join(allowed)}")
