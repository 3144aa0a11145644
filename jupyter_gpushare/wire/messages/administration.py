"""Requests of admins."""

from __future__ import annotations

from typing import Any

from .base import Identity, Request, Text


class Device(Request, tag="device", frozen=True, kw_only=True):
    """Take a device out of use because of `failed` (for people), or, if that is empty, into use again (admins).

    New clients get other devices; those that are there are told, and run on. Result: `{"clients": [id]}`, who they are.
    """

    device: Identity
    failed: Text = ""


class Config(Request, tag="config", frozen=True, kw_only=True):
    """Change settings of the coordinator (admins); an empty `changes` only reads them. Result: the settings."""

    changes: dict[str, Any] = {}


class Stop(Request, tag="stop", frozen=True, kw_only=True):
    """End the coordinator (admins). Clients run on and wait for another one."""


AdminRequest = Device | Config | Stop
