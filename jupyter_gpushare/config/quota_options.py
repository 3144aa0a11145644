"""Options for the quota of a kernel or program, checked before its start.

The provisioner, the launcher, `jupyter gpushare run` and `kernelspec install` read the quota from different places.
`GPUSHARE_QUOTA` carries the quota to the coordinator, which checks the quota again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from .. import units
from ..settings import SETTINGS
from ..settings.quota import QUOTA, check, read
from ..wire import quotas

PLACEMENT_OPTIONS = ("device", "affinity", "anti_affinity", "exclusion")  # keys of a quota, for the placement

_LABEL_PATTERN = re.compile(r"[\w.:@+ -]{1,256}\Z")


def label_options(labels: Sequence[str]) -> dict[str, str]:
    """Parse labels such as `["affinity=pair", "device=0"]`. Raise ValueError with the allowed labels."""
    options: dict[str, str] = {}
    for label in labels:
        name, separator, value = label.partition("=")
        if not separator or not value or name not in PLACEMENT_OPTIONS:
            raise ValueError(
                f"label {label!r} is invalid: allowed are {', '.join(f'{name}=NAME' for name in PLACEMENT_OPTIONS)}"
            )
        if name in options:
            raise ValueError(f"{name!r} is given twice")
        options[name] = value
    return options


def quota_text(**options: Any) -> str:
    """Return a quota such as `share=0.5, memory="8GiB"` in the form of `GPUSHARE_QUOTA`, without None and "".

    Raise ValueError with the allowed range, so that the user gets the error before the start.
    The coordinator checks the quota again.
    """
    given = {key: value for key, value in options.items() if value not in (None, "")}
    for key in given.keys() & set(PLACEMENT_OPTIONS):
        if not _LABEL_PATTERN.match(str(given[key])):
            raise ValueError(f"{key}={given[key]}: allowed are letters, digits and any of _ . : @ - +")
    fields = read({key: value for key, value in given.items() if key in QUOTA}, parts=("memory",))
    check({key: fields[key] for key in ("share", "limit") if key in fields})
    return " ".join(f"{key}={str(value).replace(' ', '')}" for key, value in given.items())


def with_inherited_quota(own: str) -> str:
    """Return a quota in the form of `GPUSHARE_QUOTA`, with other keys from that variable. Raise ValueError.

    In the environment of a shared program, the variable is the quota of that client, so it is ignored.
    """
    inherited = "" if os.environ.get("GPUSHARE_PREPARED") else os.environ.get("GPUSHARE_QUOTA", "")
    try:
        pairs = quotas.canonical_quota(units.parse_pairs(inherited))
    except ValueError as error:
        raise ValueError(f"GPUSHARE_QUOTA={inherited!r} in the environment: {error}") from None
    return quota_text(**{**pairs, **quotas.canonical_quota(units.parse_pairs(own))})


def parse_memory_mode(mode: str) -> str:
    """Return a memory mode, or "" for the coordinator's mode. Raise ValueError with the allowed modes."""
    return str(SETTINGS["memory_mode"].check(mode)) if mode else ""
