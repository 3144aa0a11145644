"""Cell quotas: changes of a client's quota that end with a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ...core.base.errors import Refused
from ...core.base.quota import Quota
from ..transport.connection import Connection

MAX_CHANGES = 64  # of one client at the same time


class _Change(NamedTuple):
    request: str
    values: dict[str, Any]


class CellQuotas:
    """Changes of one client by its cells, the latest last.

    A value of the quota that is neither the client's own nor a cell's was set meanwhile, by the panel for example. Such
    a value stays, and the changes of its key are dropped.
    """

    def __init__(self) -> None:
        self._own_values: dict[str, Any] = {}  # values that hold without the changes, of the changed keys
        self._changes: dict[tuple[Connection, int], _Change] = {}

    def allowed_values(self, values: Mapping[str, Any], quota: Quota, replaced: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that a cell may set. Raises Refused.

        `replaced` has the client's own values under an earlier coordinator that accepted the change. A key that has
        another value now was set meanwhile.
        """
        if len(self._changes) >= MAX_CHANGES:
            raise Refused(
                f"the client has {MAX_CHANGES} cell quotas already: another one is allowed when a cell has ended"
            )
        self._drop_overwritten(quota)
        own = {key: self._own_values.get(key, getattr(quota, key)) for key in values}
        return {key: value for key, value in values.items() if own[key] in (value, replaced.get(key, own[key]))}

    def add(
        self, connection: Connection, number: int, request: str, values: dict[str, Any], own: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Add a change that has been made over `own`. Return the client's own values of its keys."""
        self._own_values = {**{key: own[key] for key in values}, **self._own_values}
        self._changes[connection, number] = _Change(request, values)
        return {key: self._own_values[key] for key in values}

    def remove(
        self, connection: Connection, quota: Quota, number: int | None = None, request: str | None = None
    ) -> dict[str, Any]:
        """Drop the changes of a connection, or only those of one number or request.

        Return the values to set in the client's quota.
        """
        self._drop_overwritten(quota)
        for key, change in list(self._changes.items()):
            if key[0] is connection and number in (None, key[1]) and request in (None, change.request):
                del self._changes[key]
        current = {key: self._current_value(key) for key in self._own_values}
        self._own_values = {key: own for key, own in self._own_values.items() if self._is_changed(key)}
        return {key: value for key, value in current.items() if getattr(quota, key) != value}

    def own_quota(self, quota: Quota) -> Quota:
        """Return the client's own quota, for the state store."""
        try:
            return replace(
                quota, **{k: own for k, own in self._own_values.items() if getattr(quota, k) == self._current_value(k)}
            )
        except Refused:  # another field has changed since, and an own value contradicts the new one
            return quota

    def _drop_overwritten(self, quota: Quota) -> None:
        for key in [key for key in self._own_values if getattr(quota, key) != self._current_value(key)]:
            del self._own_values[key]
            for change in self._changes.values():
                change.values.pop(key, None)

    def _current_value(self, key: str) -> Any:
        values = [change.values[key] for change in self._changes.values() if key in change.values]
        return values[-1] if values else self._own_values[key]

    def _is_changed(self, key: str) -> bool:
        return any(key in change.values for change in self._changes.values())
