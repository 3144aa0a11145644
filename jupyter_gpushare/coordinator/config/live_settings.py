"""The coordinator's settings: from traits at the start, changed live by admins."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from traitlets import TraitError

from ... import units
from ...config.traits import GpuShare
from ...core import Scheduler
from ...core.base.device_info import DeviceInfo
from ...core.base.errors import Refused
from ...core.base.quota import Quota
from ...core.interface.settings import Settings
from ...core.placement import PlacementSettings
from ...settings import quota
from ...settings.table import LIVE, PUBLIC
from ...wire.page import FIRST_TURN, LAST_TURN
from ..gpu import topology
from .tenant_lookup import TenantLookup

log = logging.getLogger(__name__)

_CORE_SETTINGS = [field.name for field in fields(Settings) if field.name in LIVE and field.name != "placement"]


def parse_quota(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a quota from what people or programs wrote ("8GiB", 0.5, "50%", None). Raises Refused."""
    try:
        return quota.read(changes)
    except ValueError as error:
        raise Refused(str(error)) from None


class LiveSettings:
    """The traits, and what follows from them for the core."""

    def __init__(self, traits: GpuShare) -> None:
        """Raises Refused when a quota or a tenant cannot be."""
        self.traits = traits
        try:
            self.default_quota = Quota().with_changes(parse_quota(dict(traits.default_quota)))
        except Refused as error:
            raise Refused(f"default_quota: {error}") from None
        try:
            self.tenant_lookup = TenantLookup(traits.tenants)
        except Refused as error:
            raise Refused(f"tenants: {error}") from None
        self.topology: dict[str, Any] | None = None  # as soon as the devices are known
        self.topology_file = topology.read_topology_file(traits.topology) if traits.topology else None
        self._memory_cap = units.parse_size(traits.device_memory) if traits.device_memory else 0

    def core_settings(self) -> Settings:
        traits = self.traits
        placement = PlacementSettings(
            traits.placement, traits.oversubscription or None, tuple(self.tenant_lookup.tenants), self.topology
        )
        return Settings(placement=placement, **{name: getattr(traits, name) for name in _CORE_SETTINGS})

    def make_scheduler(self, found: Sequence[DeviceInfo], distance: Callable[[str, str], int | None]) -> Scheduler:
        """For these devices and their topology: of the file, or by `distance`, NVML's. Without a topology, if it and
        the tenants' cells cannot both be right.
        """
        uuids = [info.uuid for info in found]
        try:
            if self.topology_file is not None:
                self.topology = topology.resolve_uuids(self.topology_file, uuids)
            elif len(found) > 1 and not any(info.simulated for info in found):
                self.topology = topology.infer_from_distances(uuids, distance)
            return Scheduler(self.core_settings(), first_turn())
        except Refused as error:
            log.error("%s; all devices are taken to be alike", error)
            self.topology = None
            return Scheduler(self.core_settings(), first_turn())

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self.traits, name) for name in PUBLIC}

    def cap_memory(self, info: DeviceInfo) -> DeviceInfo:
        """The device as the scheduler takes it to be."""
        return replace(info, memory=min(info.memory, self._memory_cap)) if self._memory_cap else info

    def with_changes(self, changes: dict[str, Any]) -> LiveSettings:
        """New settings with some of them replaced. Raises Refused on an unknown name or a bad value."""
        traits = GpuShare(parent=self.traits.parent, **self.traits.values())
        for name, value in changes.items():
            if name not in LIVE:
                raise Refused(f"setting {name!r} is unknown or fixed while running: allowed are {', '.join(LIVE)}")
            try:
                if isinstance(value, str):
                    is_words = name == "default_quota" and not value.lstrip().startswith("{")  # share=0.5 memory=8GiB
                    value = units.parse_pairs(value) if is_words else traits.traits()[name].from_string(value)
                setattr(traits, name, value)
            except TraitError as error:
                said = str(error).removeprefix("GpuShare.")
                raise Refused(said if name in said else f"{name}: {said}") from None
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:  # of a dictionary's text
                raise Refused(f"{name}: {error}") from None
        changed = type(self)(traits)
        changed.topology = self.topology
        return changed


def first_turn() -> int:
    """Return a random number from which on a coordinator numbers its turns, so that no other one has the same."""
    return secrets.randbelow(LAST_TURN // 2 - FIRST_TURN) + FIRST_TURN
