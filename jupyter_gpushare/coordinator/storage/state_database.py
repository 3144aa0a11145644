"""SQLite file of the state store, with the state that a coordinator needs after a restart.

Each socket has one file, which only its owner can read. The file has tokens only as hashes, and no labels, because
labels are names of notebooks. Every call may block as long as the disk does, so only the state store's thread calls.
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

# Each script migrates a file of the version before; `PRAGMA user_version` is the number of scripts. A released script
# never changes.
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
    "ALTER TABLE usage ADD COLUMN orphans INTEGER NOT NULL DEFAULT 0;",
)
MAX_CLIENTS = 10_000  # the latest ones, so that a user who registers many cannot fill the disk
LOCK_TIMEOUT_SECONDS = 1.0  # for which a transaction waits for another process

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
# Parts of SQLite's messages about tables that do not fit the file's version.
_SCHEMA_ERRORS = ("no such table", "no such column", "has no column", "columns but", "already exists")
_FILE_SUFFIXES = ("", "-wal", "-shm")  # of the files that make up one database
_MAX_QUARANTINED = 100


class DatabaseUnusable(Exception):
    """Error for a file that cannot be used at present; the message has the reason."""


class DatabaseCorrupt(Exception):
    """Error for a corrupt file, which was renamed. The next call creates a new file; the message has the new name."""


class ClientRecord(NamedTuple):
    """Saved state of a client; `token` is a hash, `quota` is JSON."""

    user: str
    token: str
    quota: str
    suspended: bool


def first_hour(since: float, now: float) -> int:
    """Return the hour with which the usage since a time begins; for usage that is summed by days, the day's (UTC)."""
    hour = math.floor(since / HOUR_SECONDS)
    return hour // 24 * 24 if hour < _month_before(math.floor(now / HOUR_SECONDS)) else hour


def _month_before(hour: int) -> int:
    return (hour // 24 - 31) * 24


def hash_token(token: str) -> str:
    """Return the hash of a token, which needs no salt because tokens are random."""
    return hashlib.sha256(token.encode()).hexdigest()


class StateDatabase:
    """Database that the first call opens. All calls raise DatabaseUnusable or DatabaseCorrupt, without a change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        if self._connection:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    # --- content

    def clients(self) -> dict[str, ClientRecord]:
        """Return the clients by id."""
        with self._transaction() as file:
            rows = file.execute("SELECT id, user, token, quota, suspended FROM clients").fetchall()
        return {row[0]: ClientRecord(row[1], row[2], row[3], bool(row[4])) for row in rows}

    def write(self, clients: Mapping[str, ClientRecord | None], usage: Mapping[UsageKey, UsageTotals]) -> None:
        """Write clients, delete those that are None, and add usage to the stored usage, in one transaction."""
        with self._transaction() as file:
            gone = [(identity,) for identity, record in clients.items() if record is None]
            file.executemany("DELETE FROM clients WHERE id = ?", gone)
            rows = [(identity, *record) for identity, record in clients.items() if record]
            file.executemany(_UPSERT_CLIENT, rows)
            file.execute(_DELETE_OLD_CLIENTS, (MAX_CLIENTS,))
            file.executemany(_ADD_USAGE, [(key.hour, *key.owner, *astuple(totals)) for key, totals in usage.items()])

    def usage(self, since: int, user: str) -> dict[UsageOwner, UsageTotals]:
        """Return the usage since an hour (see `first_hour`), of one user or for "" of all users."""
        with self._transaction() as file:
            rows = file.execute(_SELECT_USAGE, (since, user)).fetchall()
        return {UsageOwner(*row[:3]): UsageTotals(*row[3:6], *map(int, row[6:])) for row in rows}

    def prune(self, hour: int, days: float) -> None:
        """Delete usage that is older than `days`, and sum up by days usage that is older than a month.

        `hour` is the present hour.
        """
        with self._transaction() as file:
            file.execute("DELETE FROM usage WHERE hour < ?", (hour - math.ceil(days * 24),))
            by_day = _month_before(hour)
            file.execute(_SUM_BY_DAY, (by_day,))
            file.execute("DELETE FROM usage WHERE hour < ? AND hour % 24 != 0", (by_day,))

    # --- the file

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the statements of the `with` block in one transaction."""
        try:
            if self._connection is None:
                self._connection = self._open()
            with self._connection:
                yield self._connection
        except sqlite3.Error as error:
            self.close()
            if type(error) is not sqlite3.DatabaseError and not any(words in str(error) for words in _SCHEMA_ERRORS):
                raise DatabaseUnusable(str(error)) from error  # full, locked or read-only, which may change
            raise DatabaseCorrupt(
                f"{self.path} was corrupt ({error}): it is {self._quarantine()} now, and a new file replaces it"
            ) from error
        except OSError as error:
            self.close()
            raise DatabaseUnusable(error.strerror or str(error)) from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)  # SQLite gives its other files the same mode
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
        """Rename the corrupt file, which an administrator may want to examine. Return its new name."""
        names = (self.path.with_name(f"{self.path.name}.broken-{number}") for number in range(1, _MAX_QUARANTINED))
        free = next((name for name in names if not name.exists()), None)
        if free is None:
            raise DatabaseUnusable(
                f"the file is corrupt, and {_MAX_QUARANTINED} corrupt files are in its folder already: remove them"
            )
        for side in _FILE_SUFFIXES:
            try:
                os.rename(f"{self.path}{side}", f"{free}{side}")
            except FileNotFoundError:
                continue
            except OSError as error:
                raise DatabaseUnusable(f"the file is corrupt, and cannot be renamed ({error.strerror})") from error
        return free


def _schema_version(connection: sqlite3.Connection) -> int:
    """Return the version of the file's tables; 0 for an empty file."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise DatabaseUnusable(
            f"a later coordinator has written the file in version {version}, and this one reads up to version "
            f"{len(MIGRATIONS)}"
        )
    if version < 0:
        raise sqlite3.DatabaseError(f"the file has the version {version}, which does not exist")
    return version


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """Run the migrations from `version` on, each in a transaction."""
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
