"""Sizes in the core's messages, as people write them."""

from __future__ import annotations

import math
import re

from ..wire.text import format_size

_SIZE = re.compile(r"(=|at least |at most |up to )?\b(\d+) bytes\b")


def worded(message: object) -> str:
    """The message of an error or a notice of the core: "561048576 bytes" -> "535.1 MiB", "=1048576 bytes" -> "=1MiB".

    Typed back in, a size behind "at least" is enough, and one behind "at most" or "up to" is allowed.
    """
    return _SIZE.sub(_worded, str(message))


def _worded(found: re.Match[str]) -> str:
    lead, size = found[1] or "", int(found[2])
    if lead == "=":
        return f"={format_size(size)}".replace(" ", "")
    rounding = math.ceil if lead == "at least " else math.floor if lead else round
    return lead + format_size(size, rounding)
