"""`key=value` pairs and quotas as people write and read them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ..units import join_sizes, size_word

MEMORY_MODES = ("unified", "swap", "plain")  # as the shim knows them


def parse_pairs(text: str) -> dict[str, str]:
    """Return `share=0.5 memory=8GiB`, or `memory=8 GiB`, as a dictionary.

    Raises ValueError on a word without `=` and on a repeated key.
    """
    pairs: dict[str, str] = {}
    for word in shlex.split(join_sizes(text.replace(",", " "))):
        key, separator, value = word.partition("=")
        if not separator or not key or not value:
            raise ValueError(f"{word!r} is not of the form key=value")
        if key in pairs:
            raise ValueError(f"{key!r} is given twice")
        pairs[key] = value
    return pairs


def quota_words(words: Mapping[str, Any]) -> dict[str, Any]:
    """Return quota words with `class` as `service`, in lower case. Raises ValueError where both are given."""
    if "class" in words and "service" in words:
        raise ValueError("class and service are two names of the same thing: give one of them")
    known = {"service" if word == "class" else word: value for word, value in words.items()}
    if isinstance(known.get("service"), str):
        known["service"] = known["service"].lower()
    return known


def quota_line(quota: Mapping[str, Any]) -> str:
    """Return a quota, or a part of one, as it may be typed: "share=0.5 memory=8GiB resident=none class=online"."""
    words = [f"{name}={quota[name]:g}" for name in ("share", "limit") if name in quota]
    for name in ("memory", "resident"):
        if name in quota:
            words.append(f"{name}={'none' if quota[name] is None else size_word(quota[name])}")
    return " ".join([*words, *([f"class={quota['service']}"] if "service" in quota else [])])
