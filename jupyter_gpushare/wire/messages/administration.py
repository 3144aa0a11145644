"""Requests of admins."""

from __future__ import annotations

from typing import Any

from .base import Identity, Request, Text


class Device(Request, tag="device", frozen=True, kw_only=True):
    """Request of an admin to take a device out of use, or into use again if `failed` is empty.

    `failed` is the reason, for users.
    New clients get other devices. Clients on the device get a notice and run on.
    Result: `{"clients": [id]}`, the clients on the device.
    """

    device: Identity
    failed: Text = ""


class Config(Request, tag="config", frozen=True, kw_only=True):
    """Request of an admin to change settings of the coordinator; an empty `changes` only reads them.

    Result: the settings.
    """

    changes: dict[str, Any] = {}


class Stop(Request, tag="stop", frozen=True, kw_only=True):
    """Request of an admin to end the coordinator. The clients run on and wait for another coordinator."""


AdminRequest = Device | Config | Stop
