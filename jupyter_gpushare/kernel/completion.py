"""Completion of `%gpushare` and `%%gpushare` lines."""

from __future__ import annotations

from typing import Any

from .client_api import QUOTA_KEYS, SERVICE_CLASSES, WIRE_KEYS
from .magics import SUBCOMMANDS

_VALUES = {"class": [*SERVICE_CLASSES], "service": [*SERVICE_CLASSES], "hold": ["1min", "5min", "0"]}


def complete(line: str) -> list[str]:
    """Return the completions of the last word of a line.

    The line begins with `%gpushare` or `%%gpushare` and ends at the cursor.
    """
    magic, *words = line.split()
    if line[-1:].isspace():
        words.append("")
    if not words:
        return []
    first, word = words[0], words[-1]
    key, equals, _ = word.partition("=")
    if len(words) == 2 and first == "hold" and magic == "%gpushare":
        possible = list(_VALUES["hold"])
    elif equals:
        possible = [f"{key}={value}" for value in _VALUES.get(key, [])]
    else:
        possible = []
        if magic == "%%gpushare" or len(words) == 1 or first == "quota" or "=" in first:
            used = {WIRE_KEYS.get(one.partition("=")[0], one.partition("=")[0]) for one in words[:-1]}
            possible = [f"{known}=" for known in QUOTA_KEYS if WIRE_KEYS.get(known, known) not in used]
        if magic == "%gpushare" and len(words) == 1:
            possible = [*SUBCOMMANDS, *possible]
    return [one for one in possible if one.startswith(word)]


def register(shell: Any) -> None:
    """Register the completion with IPython."""
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:
        # Before IPython 8.6, a hook can only add completions, and a word begins after the last "=".
        for magic in ("%gpushare", "%%gpushare"):
            shell.set_hook("complete_command", lambda _, event: _values(complete(event.line)), str_key=magic)
        return

    @context_matcher()  # type: ignore[untyped-decorator]
    def gpushare_matcher(context: Any) -> dict[str, Any]:
        line = context.line_with_cursor[: context.cursor_position].lstrip()
        is_magic = line.startswith(("%gpushare ", "%%gpushare "))
        words = [SimpleCompletion(text=word) for word in complete(line)] if is_magic else []
        fragment = line.rsplit(None, 1)[-1] if is_magic and not line[-1].isspace() else ""
        return {"completions": words, "matched_fragment": fragment, "suppress": True}

    shell.Completer.custom_matchers.append(gpushare_matcher)


def _values(words: list[str]) -> list[str]:
    return [word.rpartition("=")[2] or word for word in words]
