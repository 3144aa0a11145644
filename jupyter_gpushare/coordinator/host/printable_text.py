"""What one user says and others see."""

from __future__ import annotations


def sanitize(text: str) -> str:
    """`text` on one line, without anything that a terminal would obey: it goes to other people's."""
    return "".join(character if character.isprintable() else " " for character in text)
