"""State store, from which a restarted coordinator continues.

Calls that save, add or query do not wait for the disk. A call replaces the pending record of its client or adds to the
pending usage, and a thread writes the pending records in one transaction. Records that cannot be written stay pending,
within bounds that do not depend on the number of changes. So with a full or hanging disk the coordinator goes on with a
warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from .state_database import MAX_CLIENTS, ClientRecord, DatabaseCorrupt, DatabaseUnusable, StateDatabase
from .usage_record import UsageKey, UsageOwner, UsageTotals

RETRY_SECONDS = 10.0  # after a failed write
MAX_PENDING_USAGE = 50_000  # rows; the oldest are dropped first
CLOSE_TIMEOUT_SECONDS = 2.0  # for which an ending coordinator waits for the disk

log = logging.getLogger(__name__)


def store_path(socket_path: str, directory: Path) -> Path:
    """Return the path of the state store of the coordinator at a socket."""
    return directory / f"state-{hashlib.sha256(socket_path.encode()).hexdigest()[:12]}.db"


class StateStore:
    """State store of one coordinator. `call_in_loop` calls a function on the event loop's thread, from any thread."""

    def __init__(self, path: Path, call_in_loop: Callable[..., object]) -> None:
        self.path = path
        self._problem = ""  # reason why the last write failed
        self._corruption = ""  # message about a corrupt file
        self._call_in_loop = call_in_loop
        self._database = StateDatabase(path)
        self._changed = threading.Condition()
        self._clients: dict[str, ClientRecord | None] = {}
        self._usage: dict[UsageKey, UsageTotals] = {}
        self._jobs: list[Callable[[], None]] = []
        self._queries: list[Callable[[bool], None]] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="state store", daemon=True)
        self._thread.start()

    @property
    def problems(self) -> list[str]:
        """Messages to users about state that cannot be written or read."""
        message = (
            f"the state store {self.path} cannot be written, so a restart of the coordinator would lose quotas, "
            f"suspensions and usage: {self._problem}"
        )
        return ([message] if self._problem else []) + ([self._corruption] if self._corruption else [])

    def load(self, on_loaded: Callable[[dict[str, ClientRecord]], None], wait: float) -> None:
        """Call `on_loaded` with the clients that an earlier coordinator saved.

        If the disk answers within `wait` seconds, that happens before this returns, and else later on the event loop. A
        state store that cannot be read ends the wait at once.
        """
        loaded = threading.Event()
        results: list[dict[str, ClientRecord]] = []
        lock = threading.Lock()  # makes the decision between the two ways atomic

        def job() -> None:
            try:
                records = self._database.clients()
            except DatabaseUnusable:  # the next try may succeed, but the caller need not wait for it
                loaded.set()
                raise
            with lock:
                results.append(records)
                if is_waiting:
                    loaded.set()
                else:
                    with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
                        self._call_in_loop(on_loaded, records)

        is_waiting = True
        self._submit(job)
        loaded.wait(wait)
        with lock:
            is_waiting = False
            if results:
                on_loaded(results[0])

    def save_client(self, client: str, record: ClientRecord | None) -> None:
        """Save the record of a client, or delete the client for None."""
        with self._changed:
            self._clients[client] = record
            self._trim_pending()
            self._changed.notify()

    def add_usage(self, key: UsageKey, totals: UsageTotals) -> None:
        """Add usage, which is written with the next client or query, or by `flush`."""
        with self._changed:
            self._usage.setdefault(key, UsageTotals()).add(totals)

    def flush(self) -> None:
        """Start a write of all pending records."""
        with self._changed:
            self._changed.notify()

    def prune(self, hour: int, days: float) -> None:
        self._submit(lambda: self._database.prune(hour, days))

    def query_usage(
        self, since: int, user: str, on_result: Callable[[dict[UsageOwner, UsageTotals] | None], None]
    ) -> None:
        """Pass the usage, with all usage that was added before, to `on_result`; see `StateDatabase.usage`.

        `on_result` gets None if the usage cannot be read.
        """

        def query(readable: bool) -> None:
            try:
                usage = self._database.usage(since, user) if readable else None
            except (DatabaseUnusable, DatabaseCorrupt):
                usage = None
            with contextlib.suppress(RuntimeError):
                self._call_in_loop(on_result, usage)

        with self._changed:
            self._queries.append(query)
            self._changed.notify()

    def close(self) -> None:
        """Write the pending records, as far as the disk does so within `CLOSE_TIMEOUT_SECONDS`."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT_SECONDS)

    def _submit(self, job: Callable[[], None]) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._is_due, RETRY_SECONDS if self._problem else None)
                clients, self._clients = self._clients, {}
                usage, self._usage = self._usage, {}
                jobs, self._jobs = self._jobs, []
                queries, self._queries = self._queries, []
                is_closing = self._is_closing
            readable = False
            try:
                if clients or usage or self._problem:
                    self._database.write(clients, usage)
                    clients, usage = {}, {}
                readable = True
                while jobs:
                    jobs[0]()
                    del jobs[0]
                self._clear_problem()
            except DatabaseCorrupt as error:
                self._corruption = str(error)
                log.warning("replacing the state store: %s", error)
            except DatabaseUnusable as error:
                self._log_problem(str(error))
            for query in queries:
                query(readable)
            self._requeue(clients, usage, jobs)
            if is_closing:
                self._database.close()
                return

    def _requeue(
        self,
        clients: dict[str, ClientRecord | None],
        usage: dict[UsageKey, UsageTotals],
        jobs: list[Callable[[], None]],
    ) -> None:
        """Return unwritten records and jobs to the queues; newer records of the same clients stay."""
        with self._changed:
            self._clients = {**clients, **self._clients}
            self._trim_pending()
            self._jobs = [*jobs, *self._jobs]
            for key, totals in self._usage.items():
                usage.setdefault(key, UsageTotals()).add(totals)
            while len(usage) > MAX_PENDING_USAGE:
                del usage[next(iter(usage))]
            self._usage = usage

    def _trim_pending(self) -> None:
        """Drop pending deletions if too many records are pending; the records may stay in the file."""
        if len(self._clients) > MAX_CLIENTS:
            self._clients = {client: record for client, record in self._clients.items() if record}

    def _is_due(self) -> bool:
        if self._is_closing or self._queries:
            return True
        return not self._problem and bool(self._clients or self._usage or self._jobs)

    def _log_problem(self, problem: str) -> None:
        """Log a problem once, until another problem replaces it."""
        is_new = problem != self._problem
        self._problem = problem
        if is_new:
            log.warning("keeping state in memory: %s", self.problems[0])

    def _clear_problem(self) -> None:
        if self._problem:
            log.info("writing %s again", self.path)
        self._problem = ""
