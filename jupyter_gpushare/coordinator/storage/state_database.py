"""The file behind the state store: what a coordinator has to know again after a restart, in SQLite.

One file per socket, for its owner alone. Tokens are there as hashes only, and no labels: these name notebooks. Every
call may block for as long as the disk does, so only the state store's thread makes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import NamedTuple

from .usage_record import HOUR_SECONDS, UsageKey, UsageOwner, UsageTotals

# Each brings a file of the version before up to date; `PRAGMA user_version` counts them. One that has been released
# is never changed.
MIGRATIONS = (
    """
    CREATE TABLE clients (
        id TEXT NOT NULL UNIQUE,
        user TEXT NOT NULL,
        token TEXT NOT NULL,
        quota TEXT NOT NULL,
        suspended INTEGER NOT NULL
    );
    """,
    """
    CREATE TABLE usage (
        hour INTEGER NOT NULL,
        user TEXT NOT NULL,
        tenant TEXT NOT NULL,
        device TEXT NOT NULL,
        gpu_seconds REAL NOT NULL,
        busy_seconds REAL NOT NULL,
        wait_seconds REAL NOT NULL,
        waits INTEGER NOT NULL,
        turns INTEGER NOT NULL,
        evicted_bytes INTEGER NOT NULL,
        restored_bytes INTEGER NOT NULL,
        PRIMARY KEY (hour, user, tenant, device)
    ) WITHOUT ROWID;
    """,
)
MAX_CLIENTS = 10_000  # the latest ones; more are somebody's nonsense
LOCK_TIMEOUT_SECONDS = 1.0  # seconds to wait for who else has the file

_UPSERT_CLIENT = """
    INSERT INTO clients VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        user = excluded.user, token = excluded.token, quota = excluded.quota, suspended = excluded.suspended
"""
_DELETE_OLD_CLIENTS = "DELETE FROM clients WHERE rowid NOT IN (SELECT rowid FROM clients ORDER BY rowid DESC LIMIT ?)"
_USAGE_COLUMNS = [one.name for one in fields(UsageTotals)]
_ADDED = ", ".join(f"{name} = min({name} + excluded.{name}, {1 << 62})" for name in _USAGE_COLUMNS)
_SUMS = ", ".join(f"total({name})" for name in _USAGE_COLUMNS)
_ON_CONFLICT_ADD = f"ON CONFLICT (hour, user, tenant, device) DO UPDATE SET {_ADDED}"
_ADD_USAGE = f"INSERT INTO usage VALUES (?, ?, ?, ?, {', '.join('?' * len(_USAGE_COLUMNS))}) {_ON_CONFLICT_ADD}"
_SELECT_USAGE = f"SELECT user, tenant, device, {_SUMS} FROM usage WHERE hour >= ? AND ? IN ('', user) GROUP BY 1, 2, 3"
_SUM_BY_DAY = f"""
    INSERT INTO usage SELECT hour / 24 * 24, user, tenant, device, {_SUMS} FROM usage
    WHERE hour < ? AND hour % 24 != 0 GROUP BY 1, 2, 3, 4 {_ON_CONFLICT_ADD}
"""
# Of what SQLite says where the tables are not those of the version that the file claims to be of.
_SCHEMA_ERRORS = ("no such table", "no such column", "has no column", "columns but", "already exists")
_FILE_SUFFIXES = ("", "-wal", "-shm")  # the names that belong to one file
_MAX_QUARANTINED = 100


class DatabaseUnusable(Exception):
    """Nothing can be kept there; the message says why. It may go by."""


class DatabaseCorrupt(Exception):
    """The file was no state store any more. It lies beside the new one, that the next call begins: see the message."""


class ClientRecord(NamedTuple):
    """What holds for a client; `token` is a hash, `quota` JSON."""

    user: str
    token: str
    quota: str
    suspended: bool


def first_hour(since: float, now: float) -> int:
    """With which the use since that time begins, in whole hours, or, where they are summed up, whole days (UTC)."""
    hour = math.floor(since / HOUR_SECONDS)
    return hour // 24 * 24 if hour < _month_before(math.floor(now / HOUR_SECONDS)) else hour


def _month_before(hour: int) -> int:
    return (hour // 24 - 31) * 24


def hash_token(token: str) -> str:
    """Of a token that is random: what cannot be guessed needs no salt."""
    return hashlib.sha256(token.encode()).hexdigest()


class StateDatabase:
    """Opened by the first call that needs it. Calls raise Unusable or Broken, having changed nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._connection:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    # --- what is kept

    def clients(self) -> dict[str, ClientRecord]:
        """By id."""
        with self._transaction() as file:
            rows = file.execute("SELECT id, user, token, quota, suspended FROM clients").fetchall()
        return {row[0]: ClientRecord(row[1], row[2], row[3], bool(row[4])) for row in rows}

    def write(self, clients: Mapping[str, ClientRecord | None], usage: Mapping[UsageKey, UsageTotals]) -> None:
        """All of it or nothing. A client that is None is over; use is added to what is there."""
        with self._transaction() as file:
            gone = [(identity,) for identity, record in clients.items() if record is None]
            file.executemany("DELETE FROM clients WHERE id = ?", gone)
            rows = [(identity, *record) for identity, record in clients.items() if record]
            file.executemany(_UPSERT_CLIENT, rows)
            file.execute(_DELETE_OLD_CLIENTS, (MAX_CLIENTS,))
            file.executemany(_ADD_USAGE, [(key.hour, *key.owner, *astuple(tally)) for key, tally in usage.items()])

    def usage(self, since: int, user: str) -> dict[UsageOwner, UsageTotals]:
        """Since that hour, see `first_hour`; of one user, or, if that is empty, of all."""
        with self._transaction() as file:
            rows = file.execute(_SELECT_USAGE, (since, user)).fetchall()
        return {UsageOwner(*row[:3]): UsageTotals(*row[3:6], *map(int, row[6:])) for row in rows}

    def prune(self, hour: int, days: float) -> None:
        """It is that hour now: what is older than `days` goes, and what is older than a month is summed up by days."""
        with self._transaction() as file:
            file.execute("DELETE FROM usage WHERE hour < ?", (hour - math.ceil(days * 24),))
            by_day = _month_before(hour)
            file.execute(_SUM_BY_DAY, (by_day,))
            file.execute("DELETE FROM usage WHERE hour < ? AND hour % 24 != 0", (by_day,))

    # --- the file

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """In one transaction."""
        try:
            if self._connection is None:
                self._connection = self._open()
            with self._connection:
                yield self._connection
        except sqlite3.Error as error:
            self.close()
            if type(error) is not sqlite3.DatabaseError and not any(words in str(error) for words in _SCHEMA_ERRORS):
                raise DatabaseUnusable(str(error)) from error  # full, locked, read-only: it may be better another time
            raise DatabaseCorrupt(
                f"{self.path} was broken ({error}): it is {self._quarantine()} now, a new one begins"
            ) from error
        except OSError as error:
            self.close()
            raise DatabaseUnusable(error.strerror or str(error)) from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)  # what SQLite puts beside it has the same mode
        try:
            if os.fstat(descriptor).st_mode & 0o077:
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        connection = sqlite3.connect(self.path, timeout=LOCK_TIMEOUT_SECONDS)
        connection.text_factory = lambda text: text.decode(errors="replace")
        try:
            version = _schema_version(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            _migrate(connection, version)
        except BaseException:
            connection.close()
            raise
        return connection

    def _quarantine(self) -> Path:
        """Nobody can read it, but nobody throws it away either. Returns where it is."""
        names = (self.path.with_name(f"{self.path.name}.broken-{number}") for number in range(1, _MAX_QUARANTINED))
        free = next((name for name in names if not name.exists()), None)
        if free is None:
            raise DatabaseUnusable(f"{_MAX_QUARANTINED} broken files lie there already")
        for side in _FILE_SUFFIXES:
            try:
                os.rename(f"{self.path}{side}", f"{free}{side}")
            except FileNotFoundError:
                continue
            except OSError as error:
                raise DatabaseUnusable(f"it is broken, and cannot be put aside ({error.strerror})") from error
        return free


def _schema_version(connection: sqlite3.Connection) -> int:
    """Of what is in the file; 0: nothing yet."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise DatabaseUnusable(
            f"it is of version {version}, written by a later coordinator; known here is {len(MIGRATIONS)}"
        )
    if version < 0:
        raise sqlite3.DatabaseError(f"it is of version {version}, and there is none")
    return version


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """One version after the other, each as a whole."""
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
