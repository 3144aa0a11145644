"""Formats of sizes, durations, fractions and `key=value` pairs for users.

Kernels load this module, so it needs only the standard library of Python 3.8.
"""

from __future__ import annotations

import math
import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgt", start=1):
    _BYTES.update({_prefix: 1024**_power, f"{_prefix}ib": 1024**_power, f"{_prefix}b": 1000**_power})

_AMOUNT = r"^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*"
_SIZE = re.compile(_AMOUNT + r"([a-z]*)$")
_DURATION = re.compile(_AMOUNT + r"(|s|sec|seconds?|m|min|minutes?|h|hours?)$")
_SINCE = re.compile(_AMOUNT + r"(m|min|minutes?|h|hours?|d|days?|w|weeks?)$")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MAX_SINCE_SECONDS = 36500 * 86400.0

_FRACTION = re.compile(r"^(?:[0-9]+(?:\.[0-9]*)?\s*%|[01]?\.[0-9]+)$")
_SPACED = re.compile(r"(=[0-9.]+)\s+([kmgt]i?b?|b|%)(?=[\s,]|$)", re.IGNORECASE)  # "8 GiB" and "90 %"


def parse_size(value: object) -> int:
    """Return the bytes of 8589934592, "8GiB", "8G" (both binary) or "8GB" (decimal). Raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a size (examples: 8GiB, 512MiB)")
    match = _SIZE.match(str(value).strip().lower())
    if not match or match[2] not in _BYTES or (_BYTES[match[2]] == 1 and match[1].partition(".")[2].strip("0")):
        raise ValueError(f"{value!r} is not a size (examples: 8GiB, 512MiB)")
    try:
        return int(float(match[1]) * _BYTES[match[2]]) if "." in match[1] else int(match[1]) * _BYTES[match[2]]
    except OverflowError:
        raise ValueError(f"{value!r} is too large for a size") from None


def format_size(size: float, rounding: Callable[[float], int] = round) -> str:
    """Return 1536 as "1.5 KiB" and 561048576 as "535.1 MiB": `parse_size` reads each.

    `rounding` is `math.floor` for an upper bound and `math.ceil` for a lower bound.
    """
    for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB")):
        parts = 1 if power == 0 else 10 if abs(size) >= 10 * 1024**power else 100
        amount = rounding(size * parts / 1024**power) / parts
        if abs(amount) < 1024 or unit == "TiB":
            break
    return f"{amount:.2f}".rstrip("0").rstrip(".") + f" {unit}"


def size_word(size: float) -> str:
    """Return a size as one word of `key=value` pairs: "535.1MiB"."""
    return format_size(size).replace(" ", "")


def join_sizes(pairs: str) -> str:
    """Return `limit=90 % memory=8 GiB` as `limit=90% memory=8GiB`."""
    return _SPACED.sub(r"\1\2", pairs)


def parse_pairs(text: str) -> dict[str, str]:
    """Return the words of "share=0.5 memory=8 GiB" as a dictionary; commas separate them as well.

    The keys are returned in lower case. Raise ValueError for a word without `=` and for a repeated key.
    """
    pairs: dict[str, str] = {}
    for word in shlex.split(join_sizes(text.replace(",", " "))):
        key, _, value = word.partition("=")
        key = key.lower()
        if not key or not value:
            raise ValueError(f"{word!r} is not of the form key=value")
        if key in pairs:
            raise ValueError(f"{key!r} is given twice")
        pairs[key] = value
    return pairs


def parse_fraction(value: object) -> float:
    """Return the number of 0.5, "0.5" or "50%". Raise ValueError."""
    text = str(value).strip()
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"{value!r} is not a fraction (examples: 0.5, 50%)") from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{value!r} is not a fraction (examples: 0.5, 50%)")
    return number


def is_fraction(value: object) -> bool:
    """Return true for a `memory` that is a fraction of the device, such as 0.5, "0.5", "50%" and 1.0; 1 is a size."""
    if isinstance(value, float):
        return 0 < value <= 1
    return isinstance(value, str) and bool(_FRACTION.match(value.strip()))


def parse_duration(value: object) -> float:
    """Return the seconds of 90, "90", "90s", "1.5 min" or "1h". Raise ValueError."""
    match = _DURATION.match(str(value).strip().lower())
    if isinstance(value, bool) or not match:
        raise ValueError(f"{value!r} is not a duration (examples: 90, 30s, 5min, 1h)")
    return float(match[1]) * _SECONDS[match[2][:1]]


def parse_since(value: str, now: float) -> float:
    """Return the seconds that have passed at `now` (since 1970) since a time. Raise ValueError.

    `value` is a duration ("7d", "12h", "90min", "2w"), or a local date or time ("2026-11-01", "2026-11-01T12:00").
    """
    from datetime import datetime  # here, because the import would slow down every start of a kernel

    word = value.strip().lower()
    match = _SINCE.match(word)
    try:
        if match:
            seconds = float(match[1]) * _SECONDS[match[2][:1]]
        elif word[:4].isdigit():
            seconds = now - datetime.fromisoformat(value.strip()).astimezone().timestamp()
        else:
            raise ValueError("neither")
    except (ValueError, OverflowError):
        raise ValueError(f"{value!r} is neither a duration nor a date (examples: 7d, 12h, 90min, 2026-11-01)") from None
    if not 0 <= seconds <= _MAX_SINCE_SECONDS:
        position = "in the future" if seconds < 0 else "more than 100 years ago"
        raise ValueError(f"{value!r} is {position}: allowed are past times such as 7d, 12h or 2026-11-01")
    return seconds


def format_duration(seconds: float) -> str:
    """Return 0.25 as "250 ms", 2.5 as "2.5 s", 75 as "1 min 15 s" and 7300 as "2 h 1 min".

    Pass `math.ceil(seconds)` for a countdown, so that a tenth of a second does not flicker.
    """
    if 0 < seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
