"""What a check of `jupyter gpushare doctor` has found."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """`level` is ok, warning or error; `remedy` says what to do unless it is ok."""

    level: str
    subject: str
    message: str
    remedy: str = ""
