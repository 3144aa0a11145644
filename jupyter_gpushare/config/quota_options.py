"""A quota as words: what users ask for when a kernel or a program starts, checked before it does.

The provisioner, the launcher, `jupyter gpushare run` and `kernelspec install` read it from different places;
`GPUSHARE_QUOTA` carries it to the coordinator, which checks again.
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

PLACEMENT_OPTIONS = ("device", "affinity", "anti_affinity", "exclusion")  # of a quota; the coordinator knows them

_LABEL_PATTERN = re.compile(r"[\w.:@+ -]{1,256}\Z")


def label_options(labels: Sequence[str]) -> dict[str, str]:
    """`["affinity=pair", "device=0"]` as words of a quota. Raises ValueError, naming the allowed ones."""
    words: dict[str, str] = {}
    for label in labels:
        name, separator, value = label.partition("=")
        if not separator or not value or name not in PLACEMENT_OPTIONS:
            raise ValueError(
                f"label {label!r} is none: allowed are {', '.join(f'{w}=NAME' for w in PLACEMENT_OPTIONS)}"
            )
        if name in words:
            raise ValueError(f"{name!r} is given twice")
        words[name] = value
    return words


def quota_text(**wanted: Any) -> str:
    """`share=0.5, memory="8GiB"` as `GPUSHARE_QUOTA` has it; None and "" mean: not asked for.

    Raises ValueError naming the allowed range. The coordinator checks again: this is for an answer before the
    start.
    """
    given = {key: value for key, value in wanted.items() if value not in (None, "")}
    for key in given.keys() & set(PLACEMENT_OPTIONS):
        if not _LABEL_PATTERN.match(str(given[key])):
            raise ValueError(f"{key}={given[key]}: allowed are letters, digits and any of _ . : @ - +")
    fields = read({key: value for key, value in given.items() if key in QUOTA}, parts=("memory",))
    check({key: fields[key] for key in ("share", "limit") if key in fields})
    return " ".join(f"{key}={str(value).replace(' ', '')}" for key, value in given.items())


def with_inherited_quota(own: str) -> str:
    """`own`, as `GPUSHARE_QUOTA` has it, and what that variable says of other keys. Raises ValueError.

    In the environment of a shared program the variable is that client's own quota, and not for others.
    """
    inherited = "" if os.environ.get("GPUSHARE_PREPARED") else os.environ.get("GPUSHARE_QUOTA", "")
    try:
        pairs = quotas.canonical_quota(units.parse_pairs(inherited))
    except ValueError as error:
        raise ValueError(f"GPUSHARE_QUOTA={inherited!r} in the environment: {error}") from None
    return quota_text(**{**pairs, **quotas.canonical_quota(units.parse_pairs(own))})


def parse_memory_mode(mode: str) -> str:
    """`mode`, or "" for the coordinator's. Raises ValueError naming the allowed ones."""
    return str(SETTINGS["memory_mode"].check(mode)) if mode else ""
