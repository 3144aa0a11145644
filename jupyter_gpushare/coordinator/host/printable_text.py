"""Removal of control characters from text that one user sends and other users see."""

from __future__ import annotations


def sanitize(text: str) -> str:
    """Return the text on one line without control characters, because terminals of other users show it."""
    return "".join(character if character.isprintable() else " " for character in text)
