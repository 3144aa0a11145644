"""Snapshots for all who ask for one, and for those who follow: these get another one when something has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ..wire import messages
from ..wire.client import encode
from .limits import TooMany
from .peer import Peer
from .slices import Slices
from .viewers import Views

INTERVAL = 0.1  # seconds between two publications
PAUSE = 20  # and so many times as long as the last one took: turns come first
MOST = 32  # followers of one user who is no admin: each Jupyter server is one, and a publication goes to all of them
_LONGEST = 1.0  # seconds of that pause at most, on a machine that is busy with something else
_IDLE = ("idle_seconds", "evicted_in", "suspended_in")  # pass by themselves

Taking: TypeAlias = Generator[None, None, dict[str, Any]]


class Followers:
    """The connections that follow the snapshot, and the requests for a single one.

    `take` makes the whole snapshot in slices; its argument is the set of clients that events were about meanwhile.
    `owners` returns the user of each client.
    """

    def __init__(self, take: Callable[[set[str]], Taking], owners: Callable[[], Mapping[str, str]]) -> None:
        self._take = take
        self._owners = owners
        self._peers: set[Peer] = set()
        self._next: asyncio.TimerHandle | None = None
        self._published: dict[str, Any] = {}
        self._behind: set[Peer] = set()  # without the last publication: they had not read what came before
        self._joining: set[Peer] = set()  # followers without a first snapshot
        self._asked: list[tuple[Peer | None, Callable[[Views], None]]] = []
        self._answered: list[Peer] = []  # by the snapshot that is being taken
        self._due = False  # a publication
        self._touched: set[str] = set()
        self._took = 0.0
        self._slices: Slices | None = None

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def ask(self, peer: Peer | None, answer: Callable[[Views], None]) -> None:
        """Pass a snapshot that is begun from now on to `answer`; before this returns where there are few clients.

        The time that a snapshot of many clients takes is charged to the users that ask for it. A connection waits for
        its answer before it can ask again.
        """
        if peer:
            peer.hold()
        self._asked.append((peer, answer))
        self._begin()

    def add(self, peer: Peer, answer: Callable[[Views], None]) -> None:
        """Send changes to `peer` after the snapshot that `answer` gets. Raises TooMany."""
        if not peer.admin and sum(other.user == peer.user for other in self._peers - {peer}) >= MOST:
            raise TooMany(f"this user has {MOST} followers already, the most anybody may have: close some first")
        self._peers.add(peer)
        self._joining.add(peer)
        self.ask(peer, answer)

    def discard(self, peer: Peer) -> None:
        self._peers.discard(peer)
        self._behind.discard(peer)

    def changed(self, clients: Iterable[str] = ()) -> None:
        """Publish soon, at most ten times a second, and less often where a snapshot takes long.

        `clients`: those that events were about.
        """
        if self._slices and not self._slices.over:
            self._touched.update(clients)
        if self._peers and self._next is None:
            pause = max(INTERVAL, min(_LONGEST, PAUSE * self._took))
            self._next = asyncio.get_running_loop().call_later(pause, self._publish_in_time)

    def close(self) -> None:
        if self._next:
            self._next.cancel()
        if self._slices:
            self._slices.cancel()

    def _publish_in_time(self) -> None:
        self._next = None
        self._due = True
        self._begin()

    def _begin(self) -> None:
        if self._slices is None or self._slices.over:
            self._slices = Slices(self._serve(), self._spend)

    def _spend(self, seconds: float) -> None:
        self._took += seconds
        for peer in self._answered:
            peer.spend(seconds / len(self._answered))

    def _serve(self) -> Iterator[None]:
        """Take snapshots for as long as there is a request that came after the last one was begun."""
        while self._asked or self._due:
            asked, self._asked = self._asked, []
            joining, self._joining = self._joining, set()
            due, self._due = self._due, False
            followers, self._took = set(self._peers), 0.0
            self._answered = [peer for peer, _ in asked if peer]
            self._touched = set()
            try:
                views = Views((yield from self._take(self._touched)), self._owners())
                if followers <= joining:
                    self._published = news(views.status)
                for peer, answer in asked:
                    answer(views)
                    if peer:
                        peer.release()
                    yield
            except Exception:
                for peer in self._answered:
                    peer.release()
                raise
            self._answered = []
            if due:
                yield
                yield from self._publish(views, followers)

    def _publish(self, views: Views, followers: set[Peer]) -> Iterator[None]:
        told = news(views.status)
        to = self._behind if told == self._published else followers
        ready = {peer for peer in to if not peer.congested}
        self._behind = set(to) - ready
        self._published = told
        if self._behind:
            self.changed()  # they get it when they have caught up
        for peer in ready:
            yield
            peer.send(encode(messages.Snapshot(status=views.of(peer))))


def news(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a snapshot is worth a publication.

    That is all but the uptime, how busy devices are, and how long clients have been idle or have left.
    """
    devices = [{**device, "utilisation": None} for device in status["devices"]]
    clients = [{**client, **{name: client[name] is None for name in _IDLE}} for client in status["clients"]]
    told = {part: value for part, value in status.items() if part != "coordinator"}
    return {**told, "devices": devices, "clients": clients}
