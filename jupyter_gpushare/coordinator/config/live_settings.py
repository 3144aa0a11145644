"""Settings of a running coordinator, which admins may change, and the scheduler that follows from them."""

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
from ...core.interface.settings import Settings, is_device_setting, with_device_setting
from ...core.placement import PlacementSettings
from ...settings import quota
from ...settings.table import LIVE, PUBLIC
from ...wire.page import FIRST_TURN, LAST_TURN
from ..gpu import topology
from .tenant_lookup import TenantLookup

log = logging.getLogger(__name__)

_CORE_SETTINGS = [field.name for field in fields(Settings) if field.name in LIVE and field.name != "placement"]


def parse_quota(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a quota from values of users or programs ("8GiB", 0.5, "50%", None). Raises Refused."""
    try:
        return quota.read(changes)
    except ValueError as error:
        raise Refused(str(error)) from None


class LiveSettings:
    """Traits, and the settings of the core that follow from them."""

    def __init__(self, traits: GpuShare) -> None:
        """Check the traits. Raises Refused for an impossible quota or tenant."""
        self.traits = traits
        try:
            self.default_quota = Quota().with_changes(parse_quota(dict(traits.default_quota)))
        except Refused as error:
            raise Refused(f"default_quota: {error}") from None
        try:
            self.tenant_lookup = TenantLookup(traits.tenants)
        except Refused as error:
            raise Refused(f"tenants: {error}") from None
        self.topology: dict[str, Any] | None = None  # None until the devices are known
        self.topology_file = topology.read_topology_file(traits.topology) if traits.topology else None
        self._memory_cap = units.parse_size(traits.device_memory) if traits.device_memory else 0

    def core_settings(self) -> Settings:
        traits = self.traits
        placement = PlacementSettings(
            traits.placement, traits.oversubscription or None, tuple(self.tenant_lookup.tenants), self.topology
        )
        return Settings(placement=placement, **{name: getattr(traits, name) for name in _CORE_SETTINGS})

    def make_scheduler(self, found: Sequence[DeviceInfo], distance: Callable[[str, str], int | None]) -> Scheduler:
        """Make the scheduler for devices and their topology, which comes from the file or from NVML's `distance`.

        If the topology contradicts the tenants' topology cells, the scheduler gets no topology.
        """
        uuids = [info.uuid for info in found]
        try:
            if self.topology_file is not None:
                self.topology = topology.resolve_uuids(self.topology_file, uuids)
            elif len(found) > 1 and not any(info.simulated for info in found):
                self.topology = topology.infer_from_distances(uuids, distance)
            return Scheduler(self.core_settings(), first_turn())
        except Refused as error:
            log.error("ignoring the topology, so all devices count as equally near: %s", error)
            self.topology = None
            return Scheduler(self.core_settings(), first_turn())

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self.traits, name) for name in PUBLIC}

    def cap_memory(self, info: DeviceInfo) -> DeviceInfo:
        """Return the device with its memory capped by the setting `device_memory`."""
        return replace(info, memory=min(info.memory, self._memory_cap)) if self._memory_cap else info

    def with_changes(self, changes: dict[str, Any]) -> LiveSettings:
        """Return new settings with some values replaced. Raises Refused for an unknown name or an invalid value.

        The name of a device's own setting is such as `devices.0.policy`; None or "" removes that setting.
        """
        traits = GpuShare(parent=self.traits.parent, **self.traits.values())
        for name, value in changes.items():
            if is_device_setting(name):
                name, value = "devices", with_device_setting(traits.devices, name, value)
            if name not in LIVE:
                raise Refused(
                    f"setting {name!r} is unknown or cannot change while the coordinator runs: "
                    f"allowed are {', '.join(LIVE)}"
                )
            try:
                if isinstance(value, str):
                    value = traits.traits()[name].from_string(value)
                setattr(traits, name, value)
            except TraitError as error:
                message = str(error).removeprefix("GpuShare.")
                raise Refused(message if name in message else f"{name}: {message}") from None
            except (
                ValueError,
                TypeError,
                SyntaxError,
                RecursionError,
                MemoryError,
            ) as error:  # from a dictionary's text
                raise Refused(f"{name}: {error}") from None
        changed = type(self)(traits)
        changed.topology = self.topology
        return changed


def first_turn() -> int:
    """Return the random number of a coordinator's first turn, so that no two coordinators use one turn number."""
    return secrets.randbelow(LAST_TURN // 2 - FIRST_TURN) + FIRST_TURN
