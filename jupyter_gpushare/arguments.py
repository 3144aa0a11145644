"""Types of numbers and sizes on command lines, for argparse: a refusal names what is allowed."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

from . import units


def number(least: float, most: float) -> Callable[[str], float]:
    def read(word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ArgumentTypeError(f"{word!r} is not a number from {least:g} to {most:g}")
        return value

    return read


def count(least: int, most: int) -> Callable[[str], int]:
    def read(word: str) -> int:
        if not word.isdecimal() or not least <= int(word) <= most:
            raise ArgumentTypeError(f"{word!r} is not a whole number from {least} to {most}")
        return int(word)

    return read


def size(word: str) -> int:
    try:
        value = units.parse_size(word)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if value <= 0:
        raise ArgumentTypeError(f"{word!r} is not above 0")
    return value
