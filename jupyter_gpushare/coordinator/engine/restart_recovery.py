"""What a coordinator goes on from with clients of an earlier one, and what it keeps of its own for a later one."""

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

LOAD_TIMEOUT_SECONDS = 2.0  # seconds; a coordinator that starts waits no longer for its disk
MIN_SAVE_INTERVAL_SECONDS = 1.0  # seconds between two changes that are written at once: each is a transaction
RECONNECT_WINDOW_SECONDS = 3600.0  # seconds for which a coordinator waits for clients of an earlier one to come back

log = logging.getLogger(__name__)


class _SavedClient(NamedTuple):
    """A `ClientRecord` that need not be written to be compared."""

    user: str
    token: str
    quota: Quota
    suspended: bool


class RestartRecovery:
    """Quotas and suspensions, and whose each client is. `now`: seconds, on the clock of events."""

    def __init__(self, state_store: StateStore, now: float) -> None:
        self._state_store = state_store
        self._awaited: dict[str, ClientRecord] = {}  # clients that are not back yet
        self._restored: set[str] = set()  # that are back; nothing was said of them yet
        self._saved: dict[str, _SavedClient] = {}  # what was said of those that are here
        self._reconnect_deadline = now + RECONNECT_WINDOW_SECONDS
        self._saved_at = -MIN_SAVE_INTERVAL_SECONDS
        state_store.load(self._on_loaded, LOAD_TIMEOUT_SECONDS)

    def _on_loaded(self, records: Mapping[str, ClientRecord]) -> None:
        self._awaited = {client: record for client, record in records.items() if client not in self._saved}

    def check_owner(self, client: str, user: str) -> None:
        """Raises PermissionError when a client of that name is another user's."""
        record = self._awaited.get(client)
        if record and record.user != user:
            raise PermissionError(f"client {client!r} belongs to another user, and may come back")

    def restore_client(self, client: str, token: str) -> ClientRecord | None:
        """What held for the client that has come back.

        Who has lost its token begins anew, as it does after it was away for too long.
        """
        record = self._awaited.pop(client, None)
        if record:
            self._restored.add(client)
        return record if record and record.token == hash_token(token) else None

    def save_changed(self, runtimes: Iterable[ClientRuntime], clients: Mapping[str, Client], now: float) -> None:
        """Write what has changed since the last time."""
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
        """It was changed: write it at once, or with the next `keep` where something has just been written."""
        if now - self._saved_at >= MIN_SAVE_INTERVAL_SECONDS and self._save_client(runtime, client):
            self._saved_at = now

    def _save_client(self, runtime: ClientRuntime, client: Client) -> bool:
        """If anything about it has changed, which is returned."""
        quota = runtime.cell_quotas.own_quota(client.quota)
        facts = _SavedClient(client.user, runtime.token_hash, quota, client.suspended_by_user)
        if self._saved.get(runtime.client_id) == facts:
            return False
        self._saved[runtime.client_id] = facts
        record = ClientRecord(facts.user, facts.token, json.dumps(asdict(quota)), facts.suspended)
        self._state_store.save_client(runtime.client_id, record)
        return True


def saved_quota(record: ClientRecord) -> Quota | None:
    """None, if no quota of ours was written there."""
    try:
        return Quota(**json.loads(record.quota))
    except (ValueError, TypeError, Refused) as error:
        log.warning("the quota %.200r in the state store is not used: %s", record.quota, error)
        return None
