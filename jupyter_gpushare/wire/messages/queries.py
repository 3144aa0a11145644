"""Requests that only look."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .base import Identity, Request


class Status(Request, tag="status", frozen=True, kw_only=True):
    """Result: the snapshot, see `docs/reference/wire.md`."""


class Subscribe(Request, tag="subscribe", frozen=True, kw_only=True):
    """Result: a first snapshot; then a Snapshot message after each change, at most ten a second."""


class History(Request, tag="history", frozen=True, kw_only=True):
    """What clients did in the last ten minutes, after the entry of that number; 0: all that is kept, which begins with
    how things stood then. `client`: of that one only.

    Result: `{"run", "now", "next", "more": bool, "entries": [{"at", "client", "what"}], "utilisation": {uuid: fraction
    or null}}`, see `docs/reference/rest.md`. An answer is no longer than a line, hence `more`: ask again with `next`.
    """

    after: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    client: Annotated[str, msgspec.Meta(max_length=128)] = ""


class WaitStatus(Request, tag="wait_status", frozen=True, kw_only=True):
    """What the client waits for (its owner or an admin); cheap enough to be asked every second.

    Result: `{"waiting": bool, "waited_seconds": of this wait, "wait_seconds": of all, "queue_position",
    "expected_wait", "suspended": bool,
    "running": [{"client", "label", "user", "seconds_left", "held": bool}]}`: who has its devices (`label` is "" for
    other users' clients; `held`: by a hold, while it runs nothing). One that is suspended waits for its resumption and
    has no place in a queue (null).
    """

    client: Identity


class Inspect(Request, tag="inspect", frozen=True, kw_only=True):
    """Look into a process (its owner or an admin), whose pid is that of a snapshot.

    Result: `{"pid", "client", "label", "coordinator", "page": {block: {field: value}}, "details": …}`, where `details`
    has the fields of Details but `seq`. It is null when the process doesn't answer: it is stopped.
    """

    pid: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] = 1


class Usage(Request, tag="usage", frozen=True, kw_only=True):
    """Request for the usage in the last `since` seconds: that of the user, and for admins that of every user.

    Result: `{"since", "until": seconds since 1970, "rows": [{"user", "tenant": of the settings or null, "device",
    "device_name", "gpu_seconds", "busy_seconds", "wait_seconds", "waits", "turns", "evicted_bytes",
    "restored_bytes"}], "complete": bool}`, in whole hours, see `docs/reference/rest.md`. Not `complete`: the
    state store cannot be read, and the rows are those of the present coordinator.
    """

    since: Annotated[float, msgspec.Meta(ge=0, le=1e10)] = 7 * 86400.0


QueryRequest = Status | Subscribe | History | WaitStatus | Inspect | Usage
