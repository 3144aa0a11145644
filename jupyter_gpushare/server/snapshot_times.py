"""Fields of a snapshot that change with the time alone."""

from __future__ import annotations

from typing import Any

_REMAINING_FIELDS = {"seconds_left", "expected_wait", "hold_seconds_left", "evicted_in", "suspended_in"}
_ELAPSED_FIELDS = {"granted_seconds", "idle_seconds", "uptime_seconds"}
# Frames for changes of these fields would make an idle server look busy to a hub's proxy.
_CLOCK_FIELDS = {*_REMAINING_FIELDS, *_ELAPSED_FIELDS, "memory_backing", "max_evicted", "utilisation"}
_PROGRESS = "progress"  # The times in this part are those of the last report of the client.
_EXACT_SECONDS = 0.1  # the age up to which the times of a snapshot are exact enough


def without_clock_fields(value: Any) -> Any:
    """Return a snapshot, or a part of one, without the fields that change with the time alone."""
    if isinstance(value, dict):
        return {key: without_clock_fields(item) for key, item in value.items() if key not in _CLOCK_FIELDS}
    if isinstance(value, (list, tuple)):
        return [without_clock_fields(item) for item in value]
    return value


def counted_on(value: Any, seconds: float) -> Any:
    """Return a snapshot, or a part of one, with its times as they are `seconds` later.

    A coordinator sends no snapshot for times that pass by themselves.
    """
    if seconds < _EXACT_SECONDS:
        return value
    if isinstance(value, dict):
        return {key: _field_later(key, item, seconds) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [counted_on(item, seconds) for item in value]
    return value


def _field_later(key: str, value: Any, seconds: float) -> Any:
    if key == _PROGRESS:
        return value
    if isinstance(value, (int, float)) and key in _REMAINING_FIELDS:
        return round(max(0.0, value - seconds), 3)
    if isinstance(value, (int, float)) and key in _ELAPSED_FIELDS:
        return round(value + seconds, 3)
    return counted_on(value, seconds)
