"""Sizes, fractions, durations and `key=value` pairs as people write and read them."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

MEMORY_MODES = ("unified", "swap", "plain")  # as the shim knows them

_UNITS = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgt", start=1):
    _UNITS |= {f"{_prefix}": 1024**_power, f"{_prefix}ib": 1024**_power, f"{_prefix}b": 1000**_power}

_FRACTION = re.compile(r"^(?:[0-9]+(?:\.[0-9]*)?%|[01]?\.[0-9]+)$")
_SIZE = re.compile(r"^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)$")

_SPACED = re.compile(r"(=[0-9.]+)\s+([kmgt]i?b?|b)(?=\s|$)", re.IGNORECASE)  # a size as `format_size` writes it

_DURATION = re.compile(r"^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(|s|sec|seconds?|m|min|minutes?|h|hours?)$")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}

_SINCE = re.compile(r"^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(m|min|minutes?|h|hours?|d|days?|w|weeks?)$")
_SINCE_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LONGEST_SINCE = 36500 * 86400.0


def parse_size(value: object) -> int:
    """Bytes from 8589934592, "8GiB", "8G" (both binary) or "8GB" (decimal). No parts of a byte. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"{value!r} is not a size (examples: 8GiB, 512MiB)")
    match = _SIZE.match(str(value).strip().lower())
    if not match or match[2] not in _UNITS or (_UNITS[match[2]] == 1 and match[1].partition(".")[2].strip("0")):
        raise ValueError(f"{value!r} is not a size (examples: 8GiB, 512MiB)")
    try:
        return int(float(match[1]) * _UNITS[match[2]]) if "." in match[1] else int(match[1]) * _UNITS[match[2]]
    except OverflowError:
        raise ValueError(f"{value!r} is beyond any size") from None


def parse_fraction(value: object) -> float:
    """A number from 0.5, "0.5" or "50%". Raises ValueError."""
    text = str(value).strip()
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"{value!r} is not a fraction (examples: 0.5, 50%)") from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(f"{value!r} is not a fraction (examples: 0.5, 50%)")
    return number


def is_fraction(value: object) -> bool:
    """Whether a `memory` is meant as a part of the device: 0.5, "0.5", "50%"; 1.0, but not 1, which is a size."""
    if isinstance(value, float):
        return 0 < value <= 1
    return isinstance(value, str) and bool(_FRACTION.match(value.strip()))


def parse_seconds(value: object) -> float:
    """Seconds from 90, "90", "90s", "1.5 min" or "1h". Raises ValueError."""
    match = _DURATION.match(str(value).strip().lower())
    if isinstance(value, bool) or not match:
        raise ValueError(f"{value!r} is not a duration (examples: 90, 30s, 5min, 1h)")
    return float(match[1]) * _SECONDS[match[2][:1]]


def parse_since(value: str, now: float) -> float:
    """Seconds before `now` (since 1970): from "7d", "12h", "90min", "2w", or a date or time such as "2026-11-01" or
    "2026-11-01T12:00", of the place where this runs. Raises ValueError."""
    word = value.strip().lower()
    match = _SINCE.match(word)
    try:
        if match:
            seconds = float(match[1]) * _SINCE_SECONDS[match[2][:1]]
        elif word[:4].isdigit():
            seconds = now - datetime.fromisoformat(value.strip()).astimezone().timestamp()
        else:
            raise ValueError("neither")
    except (ValueError, OverflowError):
        raise ValueError(f"{value!r} is neither a duration nor a date (examples: 7d, 12h, 90min, 2026-11-01)") from None
    if not 0 <= seconds <= _LONGEST_SINCE:
        when = "in the future" if seconds < 0 else "more than 100 years ago"
        raise ValueError(f"{value!r} is {when}: allowed is what has been, such as 7d, 12h or 2026-11-01")
    return seconds


def parse_pairs(text: str) -> dict[str, str]:
    """`share=0.5 memory=8GiB`, or `memory=8 GiB`, as a dictionary.

    Raises ValueError on a word without `=` and on a repeated key.
    """
    pairs: dict[str, str] = {}
    for word in shlex.split(_SPACED.sub(r"\1\2", text.replace(",", " "))):
        key, separator, value = word.partition("=")
        if not separator or not key or not value:
            raise ValueError(f"{word!r} is not of the form key=value")
        if key in pairs:
            raise ValueError(f"{key!r} is given twice")
        pairs[key] = value
    return pairs


def quota_words(words: Mapping[str, Any]) -> dict[str, Any]:
    """The same, `class` being another name of `service`, in lower case. Raises ValueError where both are given."""
    if "class" in words and "service" in words:
        raise ValueError("class and service are two names of the same thing: give one of them")
    known = {"service" if word == "class" else word: value for word, value in words.items()}
    if isinstance(known.get("service"), str):
        known["service"] = known["service"].lower()
    return known


def format_size(size: float, rounding: Callable[[float], int] = round) -> str:
    """1536 -> "1.5 KiB", 561048576 -> "535.1 MiB": `parse_size` reads each.

    `rounding` is `math.floor` for what is allowed at most, and `math.ceil` for what is needed at least.
    """
    for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB")):
        parts = 1 if power == 0 else 10 if abs(size) >= 10 * 1024**power else 100
        amount = rounding(size * parts / 1024**power) / parts
        if abs(amount) < 1024 or unit == "TiB":
            break
    return f"{amount:.2f}".rstrip("0").rstrip(".") + f" {unit}"


def quota_line(quota: Mapping[str, Any]) -> str:
    """A whole quota as it may be typed: "share=0.5 limit=1 memory=8GiB resident=none class=online"."""
    words = [f"{name}={quota[name]:g}" for name in ("share", "limit")]
    for name in ("memory", "resident"):
        words.append(f"{name}={'none' if quota[name] is None else format_size(quota[name]).replace(' ', '')}")
    return " ".join([*words, f"class={quota['service']}"])


def format_seconds(seconds: float) -> str:
    """0.25 -> "0.2 s", 75 -> "1 min 15 s", 300 -> "5 min", 7300 -> "2 h 1 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
