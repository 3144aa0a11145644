"""Traits of `c.GpuShare`, for `jupyter_gpushare_config.py` and `jupyter_server_config.py`."""

from __future__ import annotations

import copy
import os
import re
from typing import TYPE_CHECKING, Any

from traitlets import Dict, List, TraitError, TraitType, Unicode, validate
from traitlets.config import Configurable

from .. import units
from ..settings import SETTINGS, Setting, quota
from ..settings.device_table import DeviceTable, read_device_table
from ..wire import address


class SettingTrait(TraitType[Any, Any]):
    """Trait whose values the table of settings parses and checks."""

    def validate(self, obj: Any, value: Any) -> Any:
        setting = SETTINGS[str(self.name)]
        is_size = setting.type == "size"  # A size remains a text, and an empty text is no size.
        if is_size and value == "":
            return value
        try:
            parsed = setting.read(value)
        except ValueError as error:
            raise TraitError(f"GpuShare.{error}") from None
        return str(value) if is_size else parsed

    def from_string(self, s: str) -> str:
        return s


class QuotaTrait(Dict):
    """Trait for a quota, as a table or as a text such as `memory=8GiB share=0.5`."""

    def validate(self, obj: Any, value: Any) -> Any:
        return super().validate(obj, self._pairs(value) if isinstance(value, str) else value)

    def from_string(self, s: str) -> Any:
        return super().from_string(s) if s.lstrip().startswith("{") else self._pairs(s)

    def _pairs(self, text: str) -> dict[str, str]:
        try:
            return units.parse_pairs(text)
        except ValueError as error:
            allowed = "allowed is for example 'memory=8GiB share=0.5' or {'memory': '8GiB', 'share': 0.5}"
            raise TraitError(f"GpuShare.{self.name}: {error}: {allowed}") from None


def _trait(setting: Setting) -> TraitType[Any, Any]:
    containers: dict[str, Any] = {"object": Dict, "quota": QuotaTrait, "list": List, "text": Unicode}
    # `--help-all` shows the name of the class as the type of the setting.
    kind = containers.get(setting.type) or type(setting.type.title(), (SettingTrait,), {})
    item = (Unicode(),) if setting.type == "list" else ()
    trait = kind(*item, default_value=copy.copy(setting.default), help=setting.full_help)
    tagged: TraitType[Any, Any] = trait.tag(config=True)
    return tagged


class GpuShare(Configurable):
    """Settings of GPU sharing on one host."""

    vars().update({name: _trait(setting) for name, setting in SETTINGS.items()})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @validate("sockets")
    def _check_sockets(self, proposal: dict[str, Any]) -> dict[str, str]:
        value = proposal["value"]
        for user, path in value.items():
            if not isinstance(user, str) or not user or not isinstance(path, str):
                raise TraitError(f"GpuShare.sockets: {{{user!r}: {path!r}}} is not a user with a path")
            try:
                address.socket_path(path or ".")
            except address.BadAddress as error:
                raise TraitError(f"GpuShare.sockets: {user}: {error}") from None
        if len(set(value.values())) < len(value):
            raise TraitError("GpuShare.sockets: two users have the same socket, but each user needs a socket")
        return {user: os.path.normpath(path) for user, path in value.items()}

    @validate("cgroup_user")
    def _check_pattern(self, proposal: dict[str, Any]) -> str:
        try:
            re.compile(proposal["value"])
        except re.error as error:
            raise TraitError(
                f"GpuShare.cgroup_user: {proposal['value']!r} is not a regular expression: {error}"
            ) from None
        return str(proposal["value"])

    @validate("metrics", "coordinator")
    def _check_address(self, proposal: dict[str, Any]) -> str:
        value, name = str(proposal["value"]), proposal["trait"].name
        try:
            if value and name == "metrics":
                address.metrics_address(value)
            elif value:
                value = address.socket_path(value)
        except address.BadAddress as error:
            raise TraitError(f"GpuShare.{name}: {error}") from None
        return value

    @validate("default_quota")
    def _check_quota(self, proposal: dict[str, Any]) -> dict[str, Any]:
        try:
            fields = quota.read(proposal["value"])
            quota.check({name: value for name, value in fields.items() if name in ("share", "limit")})
        except ValueError as error:
            raise TraitError(f"GpuShare.default_quota: {error}") from None
        if unknown := fields.keys() - quota.QUOTA.keys():
            raise TraitError(f"GpuShare.default_quota: unknown {sorted(unknown)}: allowed are {', '.join(quota.QUOTA)}")
        return dict(proposal["value"])

    @validate("devices")
    def _check_devices(self, proposal: dict[str, Any]) -> DeviceTable:
        try:
            return read_device_table(proposal["value"])
        except ValueError as error:
            raise TraitError(f"GpuShare.{error}") from None

    def values(self) -> dict[str, Any]:
        """Return all settings by name."""
        return {name: getattr(self, name) for name in SETTINGS}

    def argv(self) -> list[str]:
        """Return the options of a coordinator for the settings that differ from the defaults."""
        options = []
        for name, value in sorted(self.values().items()):
            if name == "coordinator" or value == SETTINGS[name].default:
                continue
            options.append(f"--GpuShare.{name}={value!r}" if isinstance(value, dict) else f"--GpuShare.{name}={value}")
        return options


def server_settings(parent: Configurable) -> tuple[GpuShare, str]:
    """Return the Jupyter server's `c.GpuShare`, or the defaults with a message about the invalid setting."""
    try:
        return GpuShare(parent=parent), ""
    except TraitError as error:
        return GpuShare(), f"the server's settings are invalid, so the defaults apply: {error}"
