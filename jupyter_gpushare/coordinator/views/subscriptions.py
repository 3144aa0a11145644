"""Snapshots for all who ask for one, and for those who follow: these get another one when something has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from ...wire import messages
from ...wire.client import encode
from ..host.chunked_work import ChunkedWork
from ..transport.connection import Connection
from ..transport.rate_limits import LimitExceeded
from .snapshot_visibility import SnapshotEncoder

MIN_INTERVAL_SECONDS = 0.1  # seconds between two publications
PAUSE_FACTOR = 20  # and so many times as long as the last one took: turns come first
MAX_SUBSCRIPTIONS = (
    32  # followers of one user who is no admin: each Jupyter server is one, and a publication goes to all of them
)
_MAX_PAUSE_SECONDS = 1.0  # seconds of that pause at most, on a machine that is busy with something else
_TICKING_FIELDS = ("idle_seconds", "evicted_in", "suspended_in")  # pass by themselves

SnapshotSteps: TypeAlias = Generator[None, None, dict[str, Any]]


class SnapshotSubscriptions:
    """The connections that follow the snapshot, and the requests for a single one.

    `take` makes the whole snapshot in slices; its argument is the set of clients that events were about meanwhile.
    `owners` returns the user of each client.
    """

    def __init__(self, build: Callable[[set[str]], SnapshotSteps], owners: Callable[[], Mapping[str, str]]) -> None:
        self._build = build
        self._owners = owners
        self._subscribers: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._published: dict[str, Any] = {}
        self._lagging: set[Connection] = set()  # without the last publication: they had not read what came before
        self._new_subscribers: set[Connection] = set()  # followers without a first snapshot
        self._requests: list[tuple[Connection | None, Callable[[SnapshotEncoder], None]]] = []
        self._requesters: list[Connection] = []  # by the snapshot that is being taken
        self._publication_due = False  # a publication
        self._changed_clients: set[str] = set()
        self._seconds_spent = 0.0
        self._work: ChunkedWork | None = None

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._subscribers)

    def __len__(self) -> int:
        return len(self._subscribers)

    def request(self, connection: Connection | None, on_snapshot: Callable[[SnapshotEncoder], None]) -> None:
        """Pass a snapshot that is begun from now on to `answer`; before this returns where there are few clients.

        The time that a snapshot of many clients takes is charged to the users that ask for it. A connection waits for
        its answer before it can ask again.
        """
        if connection:
            connection.hold()
        self._requests.append((connection, on_snapshot))
        self._start()

    def subscribe(self, connection: Connection, on_snapshot: Callable[[SnapshotEncoder], None]) -> None:
        """Send changes to `connection` after the snapshot that `answer` gets. Raises TooMany."""
        if (
            not connection.admin
            and sum(other.user == connection.user for other in self._subscribers - {connection}) >= MAX_SUBSCRIPTIONS
        ):
            raise LimitExceeded(
                f"this user has {MAX_SUBSCRIPTIONS} followers already, the most anybody may have: close some first"
            )
        self._subscribers.add(connection)
        self._new_subscribers.add(connection)
        self.request(connection, on_snapshot)

    def discard(self, connection: Connection) -> None:
        self._subscribers.discard(connection)
        self._lagging.discard(connection)

    def schedule_publication(self, clients: Iterable[str] = ()) -> None:
        """Publish soon, at most ten times a second, and less often where a snapshot takes long.

        `clients`: those that events were about.
        """
        if self._work and not self._work.is_finished:
            self._changed_clients.update(clients)
        if self._subscribers and self._timer is None:
            pause = max(MIN_INTERVAL_SECONDS, min(_MAX_PAUSE_SECONDS, PAUSE_FACTOR * self._seconds_spent))
            self._timer = asyncio.get_running_loop().call_later(pause, self._on_publication_due)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._work:
            self._work.cancel()

    def _on_publication_due(self) -> None:
        self._timer = None
        self._publication_due = True
        self._start()

    def _start(self) -> None:
        if self._work is None or self._work.is_finished:
            self._work = ChunkedWork(self._serve(), self._charge)

    def _charge(self, seconds: float) -> None:
        self._seconds_spent += seconds
        for connection in self._requesters:
            connection.charge(seconds / len(self._requesters))

    def _serve(self) -> Iterator[None]:
        """Take snapshots for as long as there is a request that came after the last one was begun."""
        while self._requests or self._publication_due:
            asked, self._requests = self._requests, []
            joining, self._new_subscribers = self._new_subscribers, set()
            due, self._publication_due = self._publication_due, False
            followers, self._seconds_spent = set(self._subscribers), 0.0
            self._requesters = [connection for connection, _ in asked if connection]
            self._changed_clients = set()
            try:
                views = SnapshotEncoder((yield from self._build(self._changed_clients)), self._owners())
                if followers <= joining:
                    self._published = significant_fields(views.status)
                for connection, answer in asked:
                    answer(views)
                    if connection:
                        connection.release()
                    yield
            except Exception:
                for connection in self._requesters:
                    connection.release()
                raise
            self._requesters = []
            if due:
                yield
                yield from self._publish(views, followers)

    def _publish(self, views: SnapshotEncoder, followers: set[Connection]) -> Iterator[None]:
        told = significant_fields(views.status)
        to = self._lagging if told == self._published else followers
        ready = {connection for connection in to if not connection.is_congested}
        self._lagging = set(to) - ready
        self._published = told
        if self._lagging:
            self.schedule_publication()  # they get it when they have caught up
        for connection in ready:
            yield
            connection.send(encode(messages.Snapshot(status=views.for_user(connection))))


def significant_fields(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a snapshot is worth a publication.

    That is all but the uptime, how busy devices are, and how long clients have been idle or have left.
    """
    devices = [{**device, "utilisation": None} for device in status["devices"]]
    clients = [{**client, **{name: client[name] is None for name in _TICKING_FIELDS}} for client in status["clients"]]
    told = {part: value for part, value in status.items() if part != "coordinator"}
    return {**told, "devices": devices, "clients": clients}
