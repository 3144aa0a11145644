"""Reader of the setting `devices`, the table of settings by device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .table import PER_DEVICE, SETTINGS

PREFIX = "devices."  # of the name of one entry: devices.DEVICE.SETTING

DeviceTable = dict[str, dict[str, Any]]


def read_device_table(table: Any) -> DeviceTable:
    """Return the checked settings by the UUID, index or name of a device.

    Raises ValueError with the wrong entry and the allowed values.
    """
    if not isinstance(table, Mapping):
        raise ValueError(f"devices={table!r} is no table: allowed is for example {{'0': {{'policy': 'fcfs'}}}}")
    found: DeviceTable = {}
    for word, values in table.items():
        if isinstance(word, bool) or not isinstance(word, str | int) or not str(word).strip():
            raise ValueError(f"devices: {word!r} is no device: allowed are a UUID, an index and a name")
        if not isinstance(values, Mapping):
            raise ValueError(f"devices: {word}: {values!r} is no table: allowed is for example {{'policy': 'fcfs'}}")
        found[str(word).strip()] = {name: _read(str(word), name, value) for name, value in values.items()}
    return found


def with_entry(table: DeviceTable, entry: str, value: Any) -> DeviceTable:
    """Return the table with one setting replaced; `entry` is `devices.DEVICE.SETTING`. None or "" removes the setting.

    Raises ValueError with the allowed names and values.
    """
    word, _, name = entry.removeprefix(PREFIX).rpartition(".")
    if not word.strip():
        raise ValueError(f"{entry!r} names no setting of a device: allowed is for example devices.0.policy")
    values = dict(table.get(word, {}))
    if value in (None, ""):
        _check_name(word, name)
        values.pop(name, None)
    else:
        values[name] = value
    changed = {**table, word: values}
    return read_device_table({word: values for word, values in changed.items() if values})


def _check_name(word: str, name: Any) -> None:
    if name not in PER_DEVICE:
        problem = "applies to all devices" if name in SETTINGS else "is unknown"
        raise ValueError(f"devices: {word}: setting {name!r} {problem}: allowed are {', '.join(PER_DEVICE)}")


def _read(word: str, name: Any, value: Any) -> Any:
    _check_name(word, name)
    try:
        return SETTINGS[name].read(value)
    except ValueError as error:
        raise ValueError(f"devices: {word}: {error}") from None
