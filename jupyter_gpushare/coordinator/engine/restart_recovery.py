"""Restoration of clients of an earlier coordinator from the state store, and saving of clients for a later one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import NamedTuple

from ...core.base.errors import Refused
from ...core.base.quota import Quota
from ...core.state.model import Client
from ..clients.client_runtime import ClientRuntime
from ..storage.state_database import ClientRecord, hash_token
from ..storage.state_store import StateStore

LOAD_TIMEOUT_SECONDS = 2.0  # for which the start of a coordinator waits for the disk
MIN_SAVE_INTERVAL_SECONDS = 1.0  # between two changes that are written at once, because each is a transaction
RECONNECT_WINDOW_SECONDS = 3600.0  # in which clients of an earlier coordinator may reconnect

log = logging.getLogger(__name__)


class _SavedClient(NamedTuple):
    """Content of a `ClientRecord` in a form that can be compared without its JSON."""

    user: str
    token: str
    quota: Quota
    suspended: bool


class RestartRecovery:
    """Quotas, suspensions and users of clients across restarts. `now`: seconds, on the clock of events."""

    def __init__(self, state_store: StateStore, now: float) -> None:
        self._state_store = state_store
        self._awaited: dict[str, ClientRecord] = {}  # clients that have not reconnected
        self._restored: set[str] = set()  # clients that have reconnected and are not in `_saved` yet
        self._saved: dict[str, _SavedClient] = {}  # present clients, as the state store has them
        self._reconnect_deadline = now + RECONNECT_WINDOW_SECONDS
        self._saved_at = -MIN_SAVE_INTERVAL_SECONDS
        state_store.load(self._on_loaded, LOAD_TIMEOUT_SECONDS)

    def _on_loaded(self, records: Mapping[str, ClientRecord]) -> None:
        self._awaited = {client: record for client, record in records.items() if client not in self._saved}

    def check_owner(self, client: str, user: str) -> None:
        """Raise PermissionError if the id belongs to a client of another user that may reconnect."""
        record = self._awaited.get(client)
        if record and record.user != user:
            raise PermissionError(f"client {client!r} belongs to another user and may reconnect: use another id")

    def restore_client(self, client: str, token: str) -> ClientRecord | None:
        """Return the record of a client that has reconnected.

        Without the token of the record, or after the reconnect window, a client starts without a record.
        """
        record = self._awaited.pop(client, None)
        if record:
            self._restored.add(client)
        return record if record and record.token == hash_token(token) else None

    def save_changed(self, runtimes: Iterable[ClientRuntime], clients: Mapping[str, Client], now: float) -> None:
        """Save the clients that have changed since the last call, and delete those that have gone."""
        gone = self._restored.union(self._saved)
        self._restored.clear()
        for runtime in runtimes:
            gone.discard(runtime.client_id)
            self._save_client(runtime, clients[runtime.client_id])
        if now > self._reconnect_deadline:
            gone |= self._awaited.keys()
            self._awaited = {}
        for identity in gone:
            self._saved.pop(identity, None)
            self._state_store.save_client(identity, None)

    def save_soon(self, runtime: ClientRuntime, client: Client, now: float) -> None:
        """Save a changed client at once, or with the next `save_changed` if another save was just before."""
        if now - self._saved_at >= MIN_SAVE_INTERVAL_SECONDS and self._save_client(runtime, client):
            self._saved_at = now

    def _save_client(self, runtime: ClientRuntime, client: Client) -> bool:
        """Save a client if it has changed, and return whether it has."""
        quota = runtime.cell_quotas.own_quota(client.quota)
        current = _SavedClient(client.user, runtime.token_hash, quota, client.suspended_by_user)
        if self._saved.get(runtime.client_id) == current:
            return False
        self._saved[runtime.client_id] = current
        record = ClientRecord(current.user, current.token, json.dumps(asdict(quota)), current.suspended)
        self._state_store.save_client(runtime.client_id, record)
        return True


def saved_quota(record: ClientRecord) -> Quota | None:
    """Return the quota in a record, or None if the record has no valid one."""
    try:
        return Quota(**json.loads(record.quota))
    except (ValueError, TypeError, Refused) as error:
        log.warning("ignoring the quota %.200r in the state store: %s", record.quota, error)
        return None
