"""Which process a client is of: when it has ended, so has the client, however many processes it left behind."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from .members import Member
from .peer import Peer

log = logging.getLogger(__name__)


class Programs:
    """Watches the processes of clients; `ended` is called once for each that has ended."""

    def __init__(self, ended: Callable[[Member], None]) -> None:
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._watched: dict[Member, int] = {}  # pidfds

    def watch(self, member: Member, peer: Peer) -> None:
        """The peer's process is the client's, if no earlier one is."""
        if member in self._watched:
            return
        try:
            watched = peer.open_process()
        except OSError as error:  # gone already, in another namespace, or an old kernel: then by the grace
            log.info("process %d of client %s cannot be watched: %s", peer.pid, member.client, error)
            return
        self._watched[member] = watched
        self._loop.add_reader(watched, self._over, member)

    def forget(self, member: Member) -> None:
        watched = self._watched.pop(member, None)
        if watched is not None:
            self._loop.remove_reader(watched)
            os.close(watched)

    def close(self) -> None:
        for member in list(self._watched):
            self.forget(member)

    def _over(self, member: Member) -> None:
        self.forget(member)
        self._ended(member)
