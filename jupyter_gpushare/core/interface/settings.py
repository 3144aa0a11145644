"""Settings of the scheduler, with times in seconds, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...settings import AUTO as AUTO
from ...settings import SETTINGS, Setting, device_table
from ..base.errors import Refused
from ..placement import PlacementSettings

EXCLUSIVE, PACKED = "exclusive", "packed"
WAIT, JOIN, INTERRUPT = "wait", "join", "interrupt"

MAX_QUANTUM_SECONDS = SETTINGS["min_quantum"].range[1]  # upper bound of quanta that follow from measurements
_DEFAULT = {name: setting.default for name, setting in SETTINGS.items()}

# Settings of the scheduler that are no traits.
_CORE_ONLY = (
    Setting("overrun_after", "seconds", None, "", range=(0.001, 86400.0)),
    Setting("evicting_overrun_after", "seconds", None, "", range=(0.001, 86400.0)),
)


@dataclass(frozen=True)
class Settings:
    """Settings of the scheduler. The defaults here do nothing about idle clients."""

    time_quantum: float | str = _DEFAULT["time_quantum"]
    policy: str = _DEFAULT["policy"]
    idle_release: float | str = _DEFAULT["idle_release"]
    cell_linger: float = _DEFAULT["cell_linger"]
    sharing: str = _DEFAULT["sharing"]  # turns or colocation of clients whose memory fits together
    min_quantum: float = _DEFAULT["min_quantum"]  # only a better class of service preempts before this time
    max_wait: float = _DEFAULT["max_wait"]  # a client that has waited so long goes first, whatever its usage
    max_hold: float = _DEFAULT["max_hold"]  # the longest time that a client may keep the devices without work
    idle_warn: float | str = 0.0  # idle time after which the client's user gets a warning; 0: no warning
    idle_evict: float | str = 0.0  # idle time after which its memory leaves; "auto": only if memory is short
    idle_suspend: float = 0.0  # idle time after which the client is suspended; 0: never
    idle_move: float = 0.0  # idle time after which the client moves from a busy device to a device without work
    wait_move: float = _DEFAULT["wait_move"]  # wait after which a client moves to a device without work; 0: never
    hibernate_after: float = 0.0  # idle time after which the client's contexts leave the device too; 0: never
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    overrun_after: float = 10.0  # a longer drain is reported
    evicting_overrun_after: float = 60.0  # a longer eviction is reported; most devices are emptied in 30 s
    overrun: str = _DEFAULT["overrun"]  # wait for an overrun to end, or join or interrupt it after `overrun_patience`
    overrun_patience: float = _DEFAULT["overrun_patience"]  # counted from the report of the overrun
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # own settings, by a device's UUID or name

    def __post_init__(self) -> None:
        """Check the values. Raises Refused."""
        try:
            for name, setting in _DEFINITIONS.items():
                setting.check(getattr(self, name))
            device_table.read_device_table(self.devices)
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


def is_device_setting(name: str) -> bool:
    """Return whether the name is that of a setting of one device, such as `devices.0.policy`."""
    return name.startswith(device_table.PREFIX)


def with_device_setting(table: device_table.DeviceTable, name: str, value: Any) -> device_table.DeviceTable:
    """Return the table `devices` with one setting replaced; None or "" removes the setting. Raises Refused."""
    try:
        return device_table.with_entry(table, name, value)
    except ValueError as error:
        raise Refused(str(error)) from None
