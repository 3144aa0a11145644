"""Result of a check of `jupyter gpushare doctor`."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """Finding of a check. `level` is ok, warning or error, and `remedy` is the user's next step unless it is ok."""

    level: str
    subject: str
    message: str
    remedy: str = ""
