"""Settings and policies in force on each device: those of the host, with the device's own settings in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..interface.settings import Settings
from ..state.model import Client, Device
from .policies import Policy, policy_of
from .wait_queue import WaitQueue

Overrides = Mapping[str, Mapping[str, Any]]  # by device: its own settings


def settings_for(host: Settings, own: Mapping[str, Any]) -> Settings:
    """Return the host's settings with those of one device in their place. Raises Refused for an invalid value."""
    return replace(host, devices={}, **own) if host.devices or own else host


class DevicePolicies:
    """Settings and policy of the host and of each device. Devices with equal settings have one policy together.

    A client on several devices has, for its turn as a whole, the settings of the first of them by UUID. Each device
    orders its own queue, and decides on its own colocations.
    """

    def __init__(self, settings: Settings, devices: dict[str, Device]) -> None:
        self.host_settings = settings
        self.host_policy = policy_of(settings)
        self._devices = devices
        self._policies: dict[str, Policy] = {}  # by device
        self._make_host_policy: Callable[[Settings], Policy] = policy_of

    # --- reading

    def settings_of(self, client: Client) -> Settings:
        """Return the settings of the client's turns; those of the host for a client without devices."""
        return client.device_bindings[0].settings if client.device_bindings else self.host_settings

    def policy_of(self, client: Client) -> Policy:
        """Return the policy for the client's turn as a whole; that of the host for a client without devices."""
        return self._policies[client.devices[0]] if client.devices else self.host_policy

    def policies_of(self, client: Client) -> Iterable[Policy]:
        """Return the policies that order the client on its devices, each once."""
        if len(client.devices) < 2:
            return (self.policy_of(client),)
        return dict.fromkeys(self._policies[uuid] for uuid in client.devices)

    def all(self) -> Iterable[Policy]:
        """Return all policies in force, each once."""
        return dict.fromkeys((self.host_policy, *self._policies.values()))

    # --- changes

    def set_host_policy(self, make: Callable[[Settings], Policy]) -> None:
        """Use a policy that no setting names as that of the host, before the first device is added."""
        self._make_host_policy = make
        self.host_policy = make(self.host_settings)

    def configure(self, settings: Settings, overrides: Overrides) -> None:
        """Use other settings on the host and its devices. Raises Refused, and then changes nothing."""
        host = settings_for(settings, {})
        resolved = {uuid: settings_for(settings, overrides.get(uuid, {})) for uuid in self._devices}
        made = [self._make_host_policy(host)]
        successors = {(self.host_policy, made[0]): None}
        for uuid, device in self._devices.items():
            policy = next((one for one in made if one.settings == resolved[uuid]), None)
            if policy is None:
                policy = policy_of(resolved[uuid])
                made.append(policy)
            successors[self._policies[uuid], policy] = None
            self._set(device, resolved[uuid], policy)
        for earlier, later in successors:
            later.take_over_state(earlier)
        self.host_settings, self.host_policy = settings, made[0]

    def add(self, device: Device) -> None:
        """Give a new device the settings and the policy of the host."""
        self._set(device, settings_for(self.host_settings, {}), self.host_policy)

    def _set(self, device: Device, settings: Settings, policy: Policy) -> None:
        self._policies[device.info.uuid] = policy
        device.settings, device.policy = settings, policy
        device.queue = WaitQueue(policy, settings.max_wait)
