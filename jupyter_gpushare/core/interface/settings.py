"""What admins set, as the scheduler takes it. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...settings import AUTO as AUTO
from ...settings import SETTINGS, Setting
from ..base.errors import Refused
from ..placement import PlacementSettings

EXCLUSIVE, PACKED = "exclusive", "packed"
WAIT, JOIN, INTERRUPT = "wait", "join", "interrupt"

MAX_QUANTUM_SECONDS = SETTINGS["min_quantum"].range[1]  # of the quanta that follow from measurements
_DEFAULT = {name: setting.default for name, setting in SETTINGS.items()}

# Settings of the scheduler alone, which no trait has.
_CORE_ONLY = (
    Setting("switch_overhead", "number", None, "", range=(0.001, 1.0)),
    Setting("idle_factor", "number", None, "", range=(0.0, 100.0)),
    Setting("overrun_after", "seconds", None, "", range=(0.001, 86400.0)),
    Setting("evicting_overrun_after", "seconds", None, "", range=(0.001, 86400.0)),
)


@dataclass(frozen=True)
class Settings:
    """The scheduler's settings. Without traits nothing is done about idle clients."""

    time_quantum: float | str = _DEFAULT["time_quantum"]
    policy: str = _DEFAULT["policy"]
    idle_release: float | str = _DEFAULT["idle_release"]
    cell_linger: float = _DEFAULT["cell_linger"]
    sharing: str = _DEFAULT["sharing"]  # clients whose memory fits together: one after the other, or at the same time
    min_quantum: float = _DEFAULT["min_quantum"]  # nobody is interrupted before, but by a better service class
    max_wait: float = _DEFAULT["max_wait"]  # whoever has waited so long goes first, whatever it had before
    max_hold: float = _DEFAULT["max_hold"]  # the longest that a client may keep the devices without working
    idle_warn: float | str = 0.0  # nobody has used a client for so long: it is told; 0: never
    idle_evict: float | str = 0.0  # its memory leaves; "auto": only where memory is short
    idle_suspend: float = 0.0
    switch_overhead: float = 0.05  # what switching may cost of the time, where the quantum is "auto"
    idle_factor: float = 1.0  # how long to wait for more work, in switch costs, where idle_release is "auto"
    tuning: bool = _DEFAULT["tuning"]  # the last two are found out by trial
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    overrun_after: float = 10.0  # draining for longer is reported
    evicting_overrun_after: float = 60.0  # so is memory that leaves for longer: most devices are emptied in 30 s
    overrun: str = _DEFAULT["overrun"]  # wait for its end, or join or interrupt it when patience with it ends
    overrun_patience: float = _DEFAULT["overrun_patience"]  # from when it is reported

    def __post_init__(self) -> None:
        """Raises Refused."""
        try:
            for name, setting in _DEFINITIONS.items():
                setting.check(getattr(self, name))
        except ValueError as error:
            raise Refused(str(error)) from None


_DEFINITIONS = {
    setting.name: setting for setting in (*SETTINGS.values(), *_CORE_ONLY) if hasattr(Settings, setting.name)
}


def parse_setting(name: str, value: str) -> Any:
    """Return the value that a text stands for. Raises Refused."""
    try:
        return _DEFINITIONS[name].read(value)
    except ValueError as error:
        raise Refused(str(error)) from None
