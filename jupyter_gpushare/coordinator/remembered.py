"""What a coordinator goes on from with clients of an earlier one, and what it keeps of its own for a later one."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import NamedTuple

from ..core.errors import Refused
from ..core.model import Client
from ..core.quota import Quota
from .journal import Journal
from .journal_file import ClientRecord, hashed
from .members import Member

LOAD_WAIT = 2.0  # seconds; a coordinator that starts waits no longer for its disk
PAUSE = 1.0  # seconds between two changes that are written at once: each is a transaction
AWAY = 3600.0  # seconds for which a coordinator waits for clients of an earlier one to come back

log = logging.getLogger(__name__)


class _Facts(NamedTuple):
    """A `ClientRecord` that need not be written to be compared."""

    user: str
    token: str
    quota: Quota
    suspended: bool


class Remembered:
    """Quotas and suspensions, and whose each client is. `now`: seconds, on the clock of events."""

    def __init__(self, journal: Journal, now: float) -> None:
        self._journal = journal
        self._away: dict[str, ClientRecord] = {}  # clients that are not back yet
        self._claimed: set[str] = set()  # that are back; nothing was said of them yet
        self._kept: dict[str, _Facts] = {}  # what was said of those that are here
        self._until = now + AWAY
        self._wrote_at = -PAUSE
        journal.load(self._loaded, LOAD_WAIT)

    def _loaded(self, records: Mapping[str, ClientRecord]) -> None:
        self._away = {client: record for client, record in records.items() if client not in self._kept}

    def check(self, client: str, tenant: str) -> None:
        """Raises PermissionError when a client of that name is another user's."""
        record = self._away.get(client)
        if record and record.user != tenant:
            raise PermissionError(f"client {client!r} belongs to another user, and may come back")

    def claim(self, client: str, token: str) -> ClientRecord | None:
        """What held for the client that has come back.

        Who has lost its token begins anew, as it does after it was away for too long.
        """
        record = self._away.pop(client, None)
        if record:
            self._claimed.add(client)
        return record if record and record.token == hashed(token) else None

    def keep(self, members: Iterable[Member], clients: Mapping[str, Client], now: float) -> None:
        """Write what has changed since the last time."""
        gone = self._claimed.union(self._kept)
        self._claimed.clear()
        for member in members:
            gone.discard(member.client)
            self._keep_one(member, clients[member.client])
        if now > self._until:
            gone |= self._away.keys()
            self._away = {}
        for identity in gone:
            self._kept.pop(identity, None)
            self._journal.keep(identity, None)

    def keep_soon(self, member: Member, client: Client, now: float) -> None:
        """It was changed: write it at once, or with the next `keep` where something has just been written."""
        if now - self._wrote_at >= PAUSE and self._keep_one(member, client):
            self._wrote_at = now

    def _keep_one(self, member: Member, client: Client) -> bool:
        """If anything about it has changed, which is returned."""
        quota = member.cell_quotas.without(client.quota)
        facts = _Facts(client.tenant, member.hashed_token, quota, client.suspended_by_person)
        if self._kept.get(member.client) == facts:
            return False
        self._kept[member.client] = facts
        record = ClientRecord(facts.user, facts.token, json.dumps(asdict(quota)), facts.suspended)
        self._journal.keep(member.client, record)
        return True


def quota_of(record: ClientRecord) -> Quota | None:
    """None, if no quota of ours was written there."""
    try:
        return Quota(**json.loads(record.quota))
    except (ValueError, TypeError, Refused) as error:
        log.warning("the quota %.200r of the journal is not used: %s", record.quota, error)
        return None
