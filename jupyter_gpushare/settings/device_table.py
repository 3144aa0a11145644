"""Reader of the setting `devices`, the table of settings by device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .table import PER_DEVICE, SETTINGS

PREFIX = "devices."  # of the name of one entry: devices.DEVICE.SETTING

DeviceTable = dict[str, dict[str, Any]]


def read_device_table(table: Any) -> DeviceTable:
    """Return the checked settings by the UUID, index or name of a device.

    The settings of equal keys, such as 0 and "0", are merged, at the place of the last one.

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
        key = str(word).strip()
        found[key] = {**found.pop(key, {}), **{name: _read(key, name, value) for name, value in values.items()}}
    return found


def with_entry(table: DeviceTable, entry: str, value: Any) -> DeviceTable:
    """Return the table with one setting replaced; `entry` is `devices.DEVICE.SETTING`. None or "" removes the setting.

    A new value puts its device last, because the last key of a device counts.

    Raises ValueError with the allowed names and values.
    """
    word, _, name = entry.removeprefix(PREFIX).rpartition(".")
    word = word.strip()
    if not word:
        raise ValueError(f"{entry!r} names no setting of a device: allowed is for example devices.0.policy")
    changed = {key: dict(values) for key, values in table.items()}
    if value in (None, ""):
        _check_name(word, name)
        changed.get(word, {}).pop(name, None)
    else:
        changed[word] = {**changed.pop(word, {}), name: value}
    return read_device_table({key: values for key, values in changed.items() if values})


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
