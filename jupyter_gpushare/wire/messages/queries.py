"""Requests that read the state."""

from __future__ import annotations

from typing import Annotated

import msgspec

from .base import Identity, Request


class Status(Request, tag="status", frozen=True, kw_only=True):
    """Request for the snapshot. Result: see `docs/reference/wire.md`."""


class Subscribe(Request, tag="subscribe", frozen=True, kw_only=True):
    """Request for a subscription. Result: a first snapshot.

    A Snapshot message follows after each change, at most ten a second.
    """


class History(Request, tag="history", frozen=True, kw_only=True):
    """Request for the history of the last ten minutes, of all clients or of `client`.

    `after` is the number of the last entry that the sender has.
    With 0, the result has all entries, and the first ones have the phases of clients at the beginning.
    Result: `{"run", "now", "next", "more": bool, "entries": [{"at", "client", "what", …}], "utilisation": {uuid:
    fraction or null}}`, see `docs/reference/rest.md`.
    An answer fits into one line; if `more` is true, a request with `next` gets the following entries.
    """

    after: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    client: Annotated[str, msgspec.Meta(max_length=128)] = ""


class WaitStatus(Request, tag="wait_status", frozen=True, kw_only=True):
    """Request of a client's owner or an admin for the present wait of the client, cheap enough for every second.

    Result: `{"waiting": bool, "waited_seconds": of this wait, "wait_seconds": of all waits, "queue_position",
    "expected_wait", "reason", "suspended": bool, "has_turn": bool, "turn_count": of the client so far,
    "running": [{"client", "label", "user", "seconds_left", "held": bool}]}`.
    `running` has the clients on the client's devices; `label` is empty for clients of other users.
    `held` is true for a client that keeps the device by a hold and runs nothing.
    `reason` is a message about what keeps the client from being next, or "".
    A suspended client is in no queue, so its `queue_position` is null.
    """

    client: Identity


class Inspect(Request, tag="inspect", frozen=True, kw_only=True):
    """Request of the owner or an admin for the page and the details of a process, by its pid in a snapshot.

    Result: `{"pid", "client", "label", "coordinator", "page": {block: {field: value}}, "details": …}`.
    `details` has the fields of Details without `seq`, or is null if the process does not answer, because it is stopped.
    """

    pid: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] = 1


class Usage(Request, tag="usage", frozen=True, kw_only=True):
    """Request for the usage in the last `since` seconds. A user gets the user's own usage, an admin that of all users.

    Result: `{"since", "until": seconds since 1970, "rows": [{"user", "tenant": of the settings or null, "device",
    "device_name", "gpu_seconds", "busy_seconds", "wait_seconds", "waits", "turns", "evicted_bytes",
    "restored_bytes", "orphans"}], "complete": bool}`, in whole hours, see `docs/reference/rest.md`.
    `complete` is false if the state store cannot be read; the rows are then those of the present coordinator.
    """

    since: Annotated[float, msgspec.Meta(ge=0, le=1e10)] = 7 * 86400.0


QueryRequest = Status | Subscribe | History | WaitStatus | Inspect | Usage
