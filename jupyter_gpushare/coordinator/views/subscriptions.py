"""Snapshots for single requests, and for subscriptions, which get new snapshots after changes."""

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

MIN_INTERVAL_SECONDS = 0.1  # between two publications
PAUSE_FACTOR = 20  # multiple of the time of a publication until the next one, because turns come first
MAX_SUBSCRIPTIONS = 32  # of one user that is no admin; each Jupyter server has one
_MAX_PAUSE_SECONDS = 1.0  # between two publications, on a machine that is busy with other programs
# Fields that change with the clock, or with the free memory of the host, alone.
_TICKING_FIELDS = ("idle_seconds", "evicted_in", "suspended_in", "memory_backing", "max_evicted")

SnapshotSteps: TypeAlias = Generator[None, None, dict[str, Any]]


class SnapshotSubscriptions:
    """Subscriptions to the snapshot, and requests for a single snapshot.

    `build` builds the whole snapshot in chunks; its argument is the set of clients that events were about meanwhile.
    `owners` returns the user of each client.
    """

    def __init__(self, build: Callable[[set[str]], SnapshotSteps], owners: Callable[[], Mapping[str, str]]) -> None:
        self._build = build
        self._owners = owners
        self._subscribers: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._published: dict[str, Any] = {}
        self._lagging: set[Connection] = set()  # missed the last publication because of unread lines
        self._new_subscribers: set[Connection] = set()  # without a first snapshot
        self._requests: list[tuple[Connection | None, Callable[[SnapshotEncoder], None]]] = []
        self._requesters: list[Connection] = []  # of the snapshot in progress
        self._publication_due = False
        self._changed_clients: set[str] = set()
        self._seconds_spent = 0.0  # on the snapshot in progress, or on the last one
        self._seconds_before = 0.0  # on the snapshot before that one
        self._work: ChunkedWork | None = None

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._subscribers)

    def __len__(self) -> int:
        return len(self._subscribers)

    def request(self, connection: Connection | None, on_snapshot: Callable[[SnapshotEncoder], None]) -> None:
        """Pass a new snapshot to `on_snapshot`; with few clients, that happens before this returns.

        The time of a snapshot of many clients is charged to the users that request it. The messages of a connection
        wait until its request is answered.
        """
        if connection:
            connection.hold()
        self._requests.append((connection, on_snapshot))
        self._start()

    def subscribe(self, connection: Connection, on_snapshot: Callable[[SnapshotEncoder], None]) -> None:
        """Pass a new snapshot to `on_snapshot`, and send later snapshots to `connection`. Raises LimitExceeded."""
        if (
            not connection.admin
            and sum(other.user == connection.user for other in self._subscribers - {connection}) >= MAX_SUBSCRIPTIONS
        ):
            raise LimitExceeded(
                f"this user has {MAX_SUBSCRIPTIONS} subscriptions already, the most a user may have: close one first"
            )
        self._subscribers.add(connection)
        self._new_subscribers.add(connection)
        self.request(connection, on_snapshot)

    def discard(self, connection: Connection) -> None:
        self._subscribers.discard(connection)
        self._lagging.discard(connection)

    def schedule_publication(self, clients: Iterable[str] = ()) -> None:
        """Publish soon, at most ten times a second, and less often if a snapshot takes long.

        `clients` has the clients that events were about.
        """
        if self._work and not self._work.is_finished:
            self._changed_clients.update(clients)
        if self._subscribers and self._timer is None:
            seconds = max(self._seconds_spent, self._seconds_before)  # a snapshot in progress may have just begun
            pause = max(MIN_INTERVAL_SECONDS, min(_MAX_PAUSE_SECONDS, PAUSE_FACTOR * seconds))
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
        """Take snapshots while there are requests or a publication that came after the start of the last snapshot."""
        while self._requests or self._publication_due:
            requests, self._requests = self._requests, []
            new_subscribers, self._new_subscribers = self._new_subscribers, set()
            due, self._publication_due = self._publication_due, False
            subscribers = set(self._subscribers)
            self._seconds_before, self._seconds_spent = self._seconds_spent, 0.0
            self._requesters = [connection for connection, _ in requests if connection]
            self._changed_clients = set()
            try:
                encoder = SnapshotEncoder((yield from self._build(self._changed_clients)), self._owners())
                if subscribers <= new_subscribers:
                    self._published = significant_fields(encoder.status)
                for connection, on_snapshot in requests:
                    on_snapshot(encoder)
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
                yield from self._publish(encoder, subscribers)

    def _publish(self, encoder: SnapshotEncoder, subscribers: set[Connection]) -> Iterator[None]:
        fields = significant_fields(encoder.status)
        recipients = self._lagging if fields == self._published else subscribers
        ready = {connection for connection in recipients if not connection.is_congested}
        self._lagging = set(recipients) - ready
        self._published = fields
        if self._lagging:
            self.schedule_publication()  # for the lagging connections, which may have read their lines by then
        for connection in ready:
            yield
            connection.send(encode(messages.Snapshot(status=encoder.for_user(connection))))


def significant_fields(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a snapshot whose changes cause a publication.

    Significant are all fields except the coordinator's, the utilisation of devices, and the ticking times of clients.
    """
    devices = [{**device, "utilisation": None} for device in status["devices"]]
    clients = [{**client, **{name: client[name] is None for name in _TICKING_FIELDS}} for client in status["clients"]]
    other_fields = {name: value for name, value in status.items() if name != "coordinator"}
    return {**other_fields, "devices": devices, "clients": clients}
