"""Devices that only users' processes have told of, as simulated ones are, or what anybody makes up."""

from __future__ import annotations

from collections.abc import Container

from ...wire import messages
from ..transport.connection import Connection
from ..transport.rate_limits import LimitExceeded

MAX_UNVERIFIED_DEVICES = (
    64  # devices of one user that nobody else has told of; they are remembered until the coordinator ends
)


class UnverifiedDevices:
    """How many each user has told of."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def check(self, connection: Connection, hello: messages.Hello, known: Container[str]) -> None:
        """Raises TooMany. An admin's word counts as what the coordinator has seen itself."""
        new = {report.uuid for report in hello.devices if report.uuid not in known}
        if new and not connection.admin and self._counts.get(connection.user, 0) + len(new) > MAX_UNVERIFIED_DEVICES:
            raise LimitExceeded(
                f"this user has told of {MAX_UNVERIFIED_DEVICES} devices that nobody else knows, the most anybody may"
            )

    def add(self, connection: Connection) -> bool:
        """One more device that was not known is told of. Returns whether it is hearsay."""
        if connection.admin:
            return False
        self._counts[connection.user] = self._counts.get(connection.user, 0) + 1
        return True
