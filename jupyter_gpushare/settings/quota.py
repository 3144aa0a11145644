"""Table of the fields of a quota, and the parser of quotas that users write."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from .. import units
from ..wire import quotas
from .setting import Setting

SERVICE_CLASSES = {"online": "runs before offline clients", "offline": "runs when no online client waits"}

QUOTA = {
    row.name: row
    for row in (
        Setting(
            "share",
            "fraction",
            0.0,
            "Fraction of the device's time that is guaranteed to the client while it has work, except under the "
            "policies 'fcfs' and 'best_effort'.",
            range=(0.0, 1.0),
            live=True,
        ),
        Setting(
            "limit",
            "fraction",
            1.0,
            "Largest fraction of the device's time that the client may run.",
            range=(0.001, 1.0),
            live=True,
        ),
        Setting(
            "memory",
            "size",
            None,
            "Memory that the client may allocate, as a size or as a fraction of the device (50%).",
            live=True,
        ),
        Setting(
            "resident",
            "size",
            None,
            "Memory that the client may keep on its devices while other clients wait, and in mode unified in its own "
            "turns too.",
            live=True,
        ),
        Setting("service", "choice", "online", "Class of service.", choices=SERVICE_CLASSES, live=True, title="Class"),
    )
}


def read(options: Mapping[str, Any], parts: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a quota from the values that users or programs wrote ("8GiB", 0.5, "50%", None).

    A size named in `parts` may be a fraction of the device; such a fraction is returned unchanged.
    An unknown option is returned unchanged, because `core.Quota` reports it.
    Raises ValueError with a message that begins with the option and names the allowed values.
    """
    try:
        known = quotas.canonical_quota(options)
    except ValueError as error:
        raise ValueError(f"quota: {error}") from None
    fields: dict[str, Any] = {}
    for name, value in known.items():
        setting = QUOTA.get(name)
        if value is None or (isinstance(value, str) and value.lower() in ("none", "unlimited")):
            if setting and setting.type != "size":
                raise ValueError(f"{name} needs a value: allowed is {setting.allowed}")
            value = None
        elif name in parts and units.is_fraction(value):
            if not 0 < units.parse_fraction(value) <= 1:
                raise ValueError(
                    f"{name}={value} is out of range: allowed is a fraction above 0 and up to 1, or a size"
                )
        elif setting:
            spelled = name if name in options else "class"  # the message names the option as the user wrote it
            value = replace(setting, name=spelled).read(value)
        fields[name] = value
    return fields


def check(fields: Mapping[str, Any]) -> None:
    """Check fields of a quota, also against each other; None is no bound. Raises ValueError as `read` does."""
    for name, value in fields.items():
        if value is not None:
            QUOTA[name].check(value)
    share, limit = fields.get("share", 0.0), fields.get("limit", 1.0)
    if share > limit:
        raise ValueError(f"share={share:g} is above limit={limit:g}: allowed is a share up to the limit")
