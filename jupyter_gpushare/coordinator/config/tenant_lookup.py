"""Tenants of the setting `tenants`, and the tenant of each user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import units
from ...core.base.errors import Refused
from ...core.placement import Tenant
from ...core.placement.tenants import tenant_from_mapping
from ..host.user_database import user_account

ANY_USER = "*"  # in a tenant's `users`: every user that no tenant names

_PARSERS = {"share": units.parse_fraction, "limit": units.parse_fraction, "memory": units.parse_size}


class TenantLookup:
    """Tenants, and the users and groups that belong to each."""

    def __init__(self, tenants: Mapping[str, Any]) -> None:
        """Parse the setting. Raises Refused with the tenant and its error."""
        self.tenants: list[Tenant] = []
        self._users: dict[str, str] = {}
        self._groups: dict[str, str] = {}
        for name, values in tenants.items():
            if not isinstance(values, Mapping):
                raise Refused(
                    f"tenant {name!r}: {values!r} is not a dictionary: allowed is for example {{'users': ['ada']}}"
                )
            rest = dict(values)
            self._add_members(name, rest, "users", self._users)
            self._add_members(name, rest, "groups", self._groups)
            self.tenants.append(tenant_from_mapping(name, _parse(name, rest)))

    def _add_members(self, tenant: str, values: dict[str, Any], key: str, into: dict[str, str]) -> None:
        names = values.pop(key, [])
        if not isinstance(names, list | tuple) or not all(isinstance(one, str | int) for one in names):
            raise Refused(f"tenant {tenant!r}: {key}={names!r} is not a list of names")
        for one in map(str, names):
            if one in into:
                raise Refused(f"tenant {tenant!r}: {key} has {one!r}, which is in tenant {into[one]!r} already")
            into[one] = tenant

    def tenant_of(self, user: str) -> str:
        """Return the tenant that has the user's name or uid, else one of its groups, else `*`; empty without one."""
        if not self.tenants:
            return ""
        names, groups = user_account(user)
        found = [self._users[name] for name in names if name in self._users]
        found += [self._groups[name] for name in groups if name in self._groups]
        return found[0] if found else self._users.get(ANY_USER, "")


def _parse(tenant: str, values: Mapping[str, Any]) -> dict[str, Any]:
    parsed = dict(values)
    for key, parse in _PARSERS.items():
        if key in parsed:
            try:
                parsed[key] = parse(parsed[key])
            except ValueError as error:
                raise Refused(f"tenant {tenant!r}: {key}: {error}") from None
    return parsed
