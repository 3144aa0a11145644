"""The coordinator's settings: from traits at the start, changed live by admins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from traitlets import Bool, Float, TraitError

from ..config import GpuShare
from ..core import Scheduler
from ..core.errors import Refused
from ..core.model import DeviceInfo
from ..core.placement import PlacementSettings
from ..core.policies import policy_of
from ..core.quota import SERVICE_CLASSES, Quota
from ..core.settings import AUTO, OR_AUTO, Settings
from ..wire import text
from . import topology
from .tenancy import Tenancy

log = logging.getLogger(__name__)

LIVE = (
    "time_quantum",
    "policy",
    "idle_release",
    "cell_linger",
    "idle_warn",
    "idle_evict",
    "idle_suspend",
    "sharing",
    "tuning",
    "min_quantum",
    "max_wait",
    "max_hold",
    "overrun",
    "overrun_patience",
    "inflight_window",
    "exempt_launches",
    "placement",
    "oversubscription",
    "tenants",
    "default_quota",
    "memory_mode",
    "pinned_memory",
    "max_connections",
    "max_processes",
    "max_clients",
    "max_messages",
)
_OF_THE_CORE = [field.name for field in fields(Settings) if field.name in LIVE and field.name != "placement"]
_SHOWN = (*LIVE, "topology", "device_memory", "simulate")
_FIXED = ("identity", "sockets", "cgroup_user", "admins", "admin_groups")  # nobody's business, but for the process
_PARSERS = {
    "share": text.parse_fraction,
    "limit": text.parse_fraction,
    "memory": text.parse_size,
    "resident": text.parse_size,
}


def parse_quota(changes: dict[str, Any]) -> dict[str, Any]:
    """Quota fields from what people or programs wrote ("8GiB", 0.5, "50%", None). Raises Refused."""
    parsed: dict[str, Any] = {}
    written = {"service": "class"} if "class" in changes else {}
    try:
        changes = text.quota_words(changes)
    except ValueError as error:
        raise Refused(f"quota: {error}") from None
    for key, value in changes.items():
        parser = _PARSERS.get(key)
        if value is None or (isinstance(value, str) and value.lower() in ("none", "unlimited")):
            parsed[key] = None
            if key not in ("memory", "resident"):
                raise Refused(f"{written.get(key, key)} needs a value")
            continue
        if key == "service" and value not in SERVICE_CLASSES:
            raise Refused(f"{written.get(key, key)}={value!r} is unknown: allowed are {', '.join(SERVICE_CLASSES)}")
        if key in ("memory", "resident") and str(value).strip().startswith("-"):
            raise Refused(f"{key}={value} is out of range: allowed is a size above 0, for example 8GiB")
        try:
            parsed[key] = parser(value) if parser else value
        except ValueError as error:
            raise Refused(f"{key}: {error}") from None
    return parsed


def _from_text(traits: GpuShare, name: str, value: str) -> Any:
    """What people write on a command line: the quota as `share=0.5 memory=8GiB` too."""
    if name == "default_quota" and not value.lstrip().startswith("{"):
        return text.parse_pairs(value)
    trait = traits.traits()[name]
    if name in OR_AUTO and value.strip().lower() == AUTO:
        return AUTO
    if isinstance(trait, Float) or name in OR_AUTO:
        try:
            return float(value)
        except ValueError:
            examples = '30, 0.5, "auto"' if name in OR_AUTO else "30, 0.5"
            raise ValueError(f"{value!r} is not a number of seconds (examples: {examples})") from None
    if isinstance(trait, Bool) and value.lower() not in ("0", "1", "false", "true"):
        raise ValueError(f"{value!r} is neither true nor false")
    return trait.from_string(value)


class LiveSettings:
    """The traits, and what follows from them for the core."""

    def __init__(self, traits: GpuShare) -> None:
        """Raises Refused when a value is out of range."""
        self.traits = traits
        try:
            self.default_quota = Quota().changed(parse_quota(dict(traits.default_quota)))
        except Refused as error:
            raise Refused(f"default_quota: {error}") from None
        try:
            self.tenancy = Tenancy(traits.tenants)
        except Refused as error:
            raise Refused(f"tenants: {error}") from None
        self.topology: dict[str, Any] | None = None  # as soon as the devices are known
        self.topology_file = topology.read(traits.topology) if traits.topology else None
        policy_of(self.core())
        self._memory_cap = text.parse_size(traits.device_memory) if traits.device_memory else 0

    def core(self) -> Settings:
        traits = self.traits
        placement = PlacementSettings(
            traits.placement, traits.oversubscription or None, tuple(self.tenancy.tenants), self.topology
        )
        return Settings(placement=placement, **{name: getattr(traits, name) for name in _OF_THE_CORE})

    def scheduler(self, found: Sequence[DeviceInfo], distance: Callable[[str, str], int | None]) -> Scheduler:
        """For these devices and their topology: of the file, or by `distance`, NVML's. Without a topology, if it and
        the tenants' cells cannot both be right.
        """
        uuids = [info.uuid for info in found]
        try:
            if self.topology_file is not None:
                self.topology = topology.resolved(self.topology_file, uuids)
            elif len(found) > 1 and not any(info.simulated for info in found):
                self.topology = topology.of_distances(uuids, distance)
            return Scheduler(self.core())
        except Refused as error:
            log.error("%s; all devices are taken to be alike", error)
            self.topology = None
            return Scheduler(self.core())

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self.traits, name) for name in _SHOWN}

    def capped(self, info: DeviceInfo) -> DeviceInfo:
        """The device as the scheduler takes it to be."""
        return replace(info, memory=min(info.memory, self._memory_cap)) if self._memory_cap else info

    def changed(self, changes: dict[str, Any]) -> LiveSettings:
        """New settings with some of them replaced. Raises Refused on an unknown name or a bad value."""
        traits = GpuShare(parent=self.traits.parent)
        for name in (*_SHOWN, *_FIXED):
            setattr(traits, name, getattr(self.traits, name))
        for name, value in changes.items():
            if name not in LIVE:
                raise Refused(f"setting {name!r} is unknown or fixed while running: allowed are {', '.join(LIVE)}")
            try:
                setattr(traits, name, _from_text(traits, name, value) if isinstance(value, str) else value)
            except (
                TraitError,
                ValueError,
                TypeError,
                SyntaxError,
                RecursionError,
                MemoryError,
                IndexError,
            ) as error:  # IndexError: traitlets, of two quotes
                raise Refused(f"{name}: {error}") from None
        changed = type(self)(traits)
        changed.topology = self.topology
        return changed
