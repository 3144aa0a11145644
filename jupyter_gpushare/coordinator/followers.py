"""Who follows the snapshot, and what each is told when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import viewers
from .limits import TooMany
from .peer import Peer

INTERVAL = 0.1  # seconds between two publications
PAUSE = 20  # and so many times as long as the last one took: turns come first
MOST = 32  # followers of one user who is no admin: each Jupyter server is one, and a publication tells them all
_LONGEST = 1.0  # however long it took, on a machine that is busy with something else
_IDLE = ("idle_seconds", "evicted_in", "suspended_in")  # pass by themselves


class Followers:
    """`take` makes the whole snapshot, which nobody is shown as it is; `owners` tells the user of each client."""

    def __init__(self, take: Callable[[], dict[str, Any]], owners: Callable[[], Mapping[str, str]]) -> None:
        self._take = take
        self._owners = owners
        self._peers: set[Peer] = set()
        self._next: asyncio.TimerHandle | None = None
        self._published: dict[str, Any] = {}
        self._behind: set[Peer] = set()  # who was told nothing of that: they had not read what came before
        self._took = 0.0

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def view(self, peer: Peer) -> dict[str, Any]:
        """The snapshot as that peer may see it."""
        return viewers.seen_by(self._take(), self._owners(), peer)

    def add(self, peer: Peer) -> dict[str, Any]:
        """From now on `peer` is told changes of what this returns. Raises TooMany."""
        if not peer.admin and sum(other.user == peer.user for other in self._peers - {peer}) >= MOST:
            raise TooMany(f"this user has {MOST} followers already, the most anybody may have: close some first")
        status = self._take()
        if not self._peers:
            self._published = news(status)
        self._peers.add(peer)
        return viewers.seen_by(status, self._owners(), peer)

    def discard(self, peer: Peer) -> None:
        self._peers.discard(peer)
        self._behind.discard(peer)

    def changed(self) -> None:
        """Tell them soon, at most ten times a second, and less often where there is a lot to tell."""
        if self._peers and self._next is None:
            pause = max(INTERVAL, min(_LONGEST, PAUSE * self._took))
            self._next = asyncio.get_running_loop().call_later(pause, self._publish_in_time)

    def close(self) -> None:
        if self._next:
            self._next.cancel()

    def _publish_in_time(self) -> None:
        self._next = None
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._publish()
        self._took = loop.time() - began

    def _publish(self) -> None:
        status = self._take()
        told = news(status)
        to = self._behind if told == self._published else self._peers
        ready = {peer for peer in to if not peer.congested}
        self._behind = set(to) - ready
        self._published = told
        if self._behind:
            self.changed()  # they are told when they have caught up
        lines = viewers.Lines(status, self._owners())
        for peer in ready:
            peer.send(lines.of(peer))


def news(status: Mapping[str, Any]) -> dict[str, Any]:
    """What is worth telling of a snapshot: all but the uptime, how busy devices are, and how long clients have not been
    used or have left until something is done about it."""
    devices = [{**device, "utilisation": None} for device in status["devices"]]
    clients = [{**client, **{name: client[name] is None for name in _IDLE}} for client in status["clients"]]
    told = {part: value for part, value in status.items() if part != "coordinator"}
    return {**told, "devices": devices, "clients": clients}
