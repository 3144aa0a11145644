"""Devices that only processes of users have reported, such as simulated or invented devices."""

from __future__ import annotations

from collections.abc import Container

from ...wire import messages
from ..transport.connection import Connection
from ..transport.rate_limits import LimitExceeded

MAX_UNVERIFIED_DEVICES = 64  # devices per user; they are kept until the coordinator ends


class UnverifiedDevices:
    """Number of unverified devices of each user."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def check(self, connection: Connection, hello: messages.Hello, known: Container[str]) -> None:
        """Raise LimitExceeded if the hello has too many new devices. Devices in an admin's hello count as verified."""
        new = {report.uuid for report in hello.devices if report.uuid not in known}
        if new and not connection.admin and self._counts.get(connection.user, 0) + len(new) > MAX_UNVERIFIED_DEVICES:
            raise LimitExceeded(
                f"processes of this user have reported {MAX_UNVERIFIED_DEVICES} devices that the coordinator cannot "
                "find, the most a user may have: use the devices of this host"
            )

    def add(self, connection: Connection) -> bool:
        """Count a new device in a hello. Return whether the device is unverified."""
        if connection.admin:
            return False
        self._counts[connection.user] = self._counts.get(connection.user, 0) + 1
        return True
