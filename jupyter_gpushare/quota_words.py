"""A quota as words: what users ask for when a kernel or a program starts, checked before it does.

The provisioner, the launcher, `jupyter gpushare run` and `kernelspec install` read it from different places;
`GPUSHARE_QUOTA` carries it to the coordinator, which checks again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from .wire import text

PLACEMENT_WORDS = ("device", "affinity", "anti_affinity", "exclusion")  # of a quota; the coordinator knows them

_WORD = re.compile(r"[\w.:@+ -]{1,256}\Z")


def label_words(labels: Sequence[str]) -> dict[str, str]:
    """`["affinity=pair", "device=0"]` as words of a quota. Raises ValueError, naming the allowed ones."""
    words: dict[str, str] = {}
    for label in labels:
        name, separator, value = label.partition("=")
        if not separator or not value or name not in PLACEMENT_WORDS:
            raise ValueError(f"label {label!r} is none: allowed are {', '.join(f'{w}=NAME' for w in PLACEMENT_WORDS)}")
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
    fractions: dict[str, float] = {}
    for key, value in given.items():
        try:
            if key in ("share", "limit"):
                fractions[key] = text.parse_fraction(value)
            elif key == "memory" and text.is_fraction(value):
                if not 0 < text.parse_fraction(value) <= 1:
                    raise ValueError("out of range: allowed is a fraction above 0 and up to 1, or a size")
            elif key in ("memory", "resident") and not 0 < text.parse_size(value) < 1 << 62:
                raise ValueError("out of range: allowed is a size above 0, for example 8GiB")
            elif key in PLACEMENT_WORDS and not _WORD.match(str(value)):
                raise ValueError("allowed are letters, digits and any of _ . : @ - +")
        except ValueError as error:
            raise ValueError(f"{key}={value}: {error}") from None
    share, limit = fractions.get("share", 0.0), fractions.get("limit", 1.0)
    if not 0 <= share <= 1:
        raise ValueError(f"share={share:g} is out of range: allowed is a fraction from 0 to 1")
    if not 0 < limit <= 1:
        raise ValueError(f"limit={limit:g} is out of range: allowed is a fraction above 0, up to 1")
    if share > limit:
        raise ValueError(f"share={share:g} is above limit={limit:g}: allowed is a share up to the limit")
    return " ".join(f"{key}={str(value).replace(' ', '')}" for key, value in given.items())


def merged_quota(own: str) -> str:
    """`own`, as `GPUSHARE_QUOTA` has it, and what that variable says of other keys. Raises ValueError.

    In the environment of a shared program the variable is that client's own quota, and not for others.
    """
    inherited = "" if os.environ.get("GPUSHARE_PREPARED") else os.environ.get("GPUSHARE_QUOTA", "")
    try:
        pairs = text.quota_words(text.parse_pairs(inherited))
    except ValueError as error:
        raise ValueError(f"GPUSHARE_QUOTA={inherited!r} in the environment: {error}") from None
    return quota_text(**{**pairs, **text.quota_words(text.parse_pairs(own))})


def checked_memory_mode(mode: str) -> str:
    """`mode`, or "" for the coordinator's. Raises ValueError naming the allowed ones."""
    if mode and mode not in text.MEMORY_MODES:
        raise ValueError(f"memory mode {mode!r} is unknown: allowed are {', '.join(text.MEMORY_MODES)}")
    return mode
