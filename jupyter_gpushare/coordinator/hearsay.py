"""Devices that only users' processes have told of, as simulated ones are, or what anybody makes up."""

from __future__ import annotations

from collections.abc import Container

from ..wire import messages
from .limits import TooMany
from .peer import Peer

MOST = 64  # devices of one user that nobody else has told of; they are remembered until the coordinator ends


class Hearsay:
    """How many each user has told of."""

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def check(self, peer: Peer, hello: messages.Hello, known: Container[str]) -> None:
        """Raises TooMany. An admin's word counts as what the coordinator has seen itself."""
        new = {report.uuid for report in hello.devices if report.uuid not in known}
        if new and not peer.admin and self._told.get(peer.user, 0) + len(new) > MOST:
            raise TooMany(f"this user has told of {MOST} devices that nobody else knows, the most anybody may")

    def is_new(self, peer: Peer) -> bool:
        """One more device that was not known is told of. Returns whether it is hearsay."""
        if peer.admin:
            return False
        self._told[peer.user] = self._told.get(peer.user, 0) + 1
        return True
