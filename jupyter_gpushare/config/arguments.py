"""Argument types of numbers and sizes for argparse, and messages on files, which name what is allowed."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

from .. import units


def number(minimum: float, maximum: float) -> Callable[[str], float]:
    """Return an argument type for numbers in a range."""

    def read(word: str) -> float:
        try:
            value = float(word)
        except ValueError:
            value = float("nan")
        if not minimum <= value <= maximum:
            raise ArgumentTypeError(f"{word!r} is not a number from {minimum:g} to {maximum:g}")
        return value

    return read


def count(minimum: int, maximum: int) -> Callable[[str], int]:
    """Return an argument type for whole numbers in a range."""

    def read(word: str) -> int:
        if not word.isdecimal() or not minimum <= int(word) <= maximum:
            raise ArgumentTypeError(f"{word!r} is not a whole number from {minimum} to {maximum}")
        return int(word)

    return read


def size(word: str) -> int:
    """Parse a size above 0, in bytes."""
    try:
        value = units.parse_size(word)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    if value <= 0:
        raise ArgumentTypeError(f"{word!r} is not above 0")
    return value


def describe_file_failure(error: OSError) -> str:
    """Return a message on a file that a user has named and that cannot be read or written."""
    if error.filename is None:
        return str(error)
    folder = Path(error.filename).absolute().parent
    if folder.exists():
        return f"{error.filename}: {error.strerror}"
    return f"{error.filename}: the folder {folder} does not exist: allowed is a file in an existing folder"
