"""The state store: what a restarted coordinator goes on from, written by a thread of its own.

Whoever says something here never waits: it is taken down, the latest word on each thing, and the thread writes all that
has come together in one transaction. What could not be written is tried again later, and meanwhile bounded by what
there is to know, not by how often it changes. So a full or hanging disk costs a warning and what a restart would have
gone on from; sharing goes on.
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

RETRY_SECONDS = 10.0  # seconds until what failed is tried again
MAX_PENDING_USAGE = 50_000  # rows that wait for a disk; the oldest go first
CLOSE_TIMEOUT_SECONDS = 2.0  # seconds that an ending coordinator waits for the disk

log = logging.getLogger(__name__)


def store_path(socket_path: str, directory: Path) -> Path:
    """Of the state store of the coordinator at that socket."""
    return directory / f"state-{hashlib.sha256(socket_path.encode()).hexdigest()[:12]}.db"


class StateStore:
    """Of one coordinator. `tell` calls a function on the event loop's thread, from any other."""

    def __init__(self, path: Path, call_in_loop: Callable[..., object]) -> None:
        self.path = path
        self._problem = ""  # why nothing is kept at present
        self._corruption = ""  # what was no state store any more, and where it is
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
        """For people: what is not kept at present, and what could not be read."""
        now = f"nothing is kept in {self.path}, and a restart would forget it: {self._problem}"
        return ([now] if self._problem else []) + ([self._corruption] if self._corruption else [])

    def load(self, on_loaded: Callable[[dict[str, ClientRecord]], None], wait: float) -> None:
        """Call `loaded` with what an earlier coordinator kept: before this returns if that takes less than `wait`
        seconds, else by the event loop, as soon as it is known."""
        known = threading.Event()
        found: list[dict[str, ClientRecord]] = []
        late = threading.Lock()  # held by whoever decides on which side of `wait` it was

        def job() -> None:
            records = self._database.clients()
            with late:
                found.append(records)
                if known_in_time:
                    known.set()
                else:
                    with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
                        self._call_in_loop(on_loaded, records)

        known_in_time = True
        self._submit(job)
        known.wait(wait)
        with late:
            known_in_time = False
            if found:
                on_loaded(found[0])

    def save_client(self, client: str, record: ClientRecord | None) -> None:
        """From now on that holds for the client; None: it is over."""
        with self._changed:
            self._clients[client] = record
            self._trim_pending()
            self._changed.notify()

    def add_usage(self, key: UsageKey, tally: UsageTotals) -> None:
        """Add that to what was used. It is written with what comes next, by `flush` at the latest."""
        with self._changed:
            self._usage.setdefault(key, UsageTotals()).add(tally)

    def flush(self) -> None:
        """Write what is to be written, if it can be."""
        with self._changed:
            self._changed.notify()

    def prune(self, hour: int, days: float) -> None:
        self._submit(lambda: self._database.prune(hour, days))

    def query_usage(
        self, since: int, user: str, on_result: Callable[[dict[UsageOwner, UsageTotals] | None], None]
    ) -> None:
        """Tell what was used, all that was said before included: see `JournalFile.usage`. None: it cannot be read."""

        def question(readable: bool) -> None:
            try:
                found = self._database.usage(since, user) if readable else None
            except (DatabaseUnusable, DatabaseCorrupt):
                found = None
            with contextlib.suppress(RuntimeError):
                self._call_in_loop(on_result, found)

        with self._changed:
            self._queries.append(question)
            self._changed.notify()

    def close(self) -> None:
        """Write what is left, if the disk is quick enough."""
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
                questions, self._queries = self._queries, []
                ends = self._is_closing
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
                log.warning("%s", error)
            except DatabaseUnusable as error:
                self._log_problem(str(error))
            for question in questions:
                question(readable)
            self._requeue(clients, usage, jobs)
            if ends:
                self._database.close()
                return

    def _requeue(
        self,
        clients: dict[str, ClientRecord | None],
        usage: dict[UsageKey, UsageTotals],
        jobs: list[Callable[[], None]],
    ) -> None:
        """What was not done is done later; what was said meanwhile of the same is newer."""
        with self._changed:
            self._clients = {**clients, **self._clients}
            self._trim_pending()
            self._jobs = [*jobs, *self._jobs]
            for key, tally in self._usage.items():
                usage.setdefault(key, UsageTotals()).add(tally)
            while len(usage) > MAX_PENDING_USAGE:
                del usage[next(iter(usage))]
            self._usage = usage

    def _trim_pending(self) -> None:
        """Of clients that have come and gone while the disk was away the file may know still, and nobody asks."""
        if len(self._clients) > MAX_CLIENTS:
            self._clients = {client: record for client, record in self._clients.items() if record}

    def _is_due(self) -> bool:
        if self._is_closing or self._queries:
            return True
        return not self._problem and bool(self._clients or self._usage or self._jobs)

    def _log_problem(self, problem: str) -> None:
        """Once for each that comes."""
        news = problem != self._problem
        self._problem = problem
        if news:
            log.warning("%s", self.problems[0])

    def _clear_problem(self) -> None:
        if self._problem:
            log.info("%s is written again", self.path)
        self._problem = ""
