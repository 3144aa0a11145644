"""Functions of `import jupyter_gpushare as gs`, which do the same as `%gpushare`.

The functions concern the program that calls them: a shared notebook kernel, or a script under `jupyter gpushare run`.
A function sends at most one request to the coordinator and waits at most two seconds for the answer.
Only `history` may send several requests, one for each part of the history, and only `move` waits longer.

Errors are subclasses of `GpuShareError`: `UsageError` (invalid argument), `NotShared` (this program does not share its
GPU), `Unreachable` (no coordinator answers) and `Refused` (the coordinator refuses the request).
The `reason` of `Refused` is a stable code for programs.
The message on an invalid value lists the allowed values.
A call that fails has changed nothing, with one exception.
The message "the request may have had an effect" reports that no answer came, and that the coordinator may have read
the request.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .kernel import session as kernel_session
from .kernel.client_api import ClientApi
from .kernel.display.report import Report
from .kernel.display.turn_history import History
from .kernel.errors import GpuShareError as GpuShareError
from .kernel.errors import NotShared as NotShared
from .kernel.errors import Refused as Refused
from .kernel.errors import Unreachable as Unreachable
from .kernel.errors import UsageError as UsageError

_UNCHANGED: Any = ...


def status() -> Report:
    """Return a report of this program and its devices. Raise Refused.

    `.own` is this program's part of the coordinator's snapshot, and `.devices` the devices (docs/reference/wire.md).
    `.problem` is a sentence on a fault of GPU sharing, for example that no coordinator answers.
    """
    return _client_api().status()


def quota(
    *,
    share: float | str = _UNCHANGED,
    limit: float | str = _UNCHANGED,
    memory: float | str | None = _UNCHANGED,
    resident: float | str | None = _UNCHANGED,
    service: str = _UNCHANGED,
    class_: str = _UNCHANGED,
    **others: Any,
) -> dict[str, Any]:
    """Change the given parts of this program's quota, and return the whole quota. Raise GpuShareError.

    `share` and `limit` are fractions of the device's time from 0 to 1, or texts such as "50%".
    `memory` and `resident` are bytes, texts such as "8GiB", or fractions of the device's memory: 0.5 or "50%".
    The float 1.0 is the whole memory, and the integer 1 is a byte; None removes the bound.
    `service`, or `class_`, is "online" or "offline".
    """
    parts = {"share": share, "limit": limit, "memory": memory, "resident": resident, "service": service}
    changes = {key: value for key, value in {**parts, "class": class_}.items() if value is not _UNCHANGED}
    if repeated := changes.keys() & others.keys():
        raise UsageError(f"{repeated.pop()!r} is given twice")
    now = _client_api().quota({**changes, **others})
    return {key: now[key] for key in parts}


def hold(seconds: float | str | None = None) -> float | None:
    """Keep the GPU for a time, also between cells. Raise GpuShareError.

    `seconds` is a number or a text such as "5min"; 0 ends the hold, and None holds as long as the settings allow.
    Return the remaining seconds of the hold, or None without a hold.
    """
    left = _client_api().hold(seconds)["hold_seconds_left"]
    return None if left is None else float(left)


def release() -> bool:
    """Give up the rest of the turn and the hold, and return False if there was neither. Raise GpuShareError."""
    return bool(_client_api().release()["released"])


def evict() -> int:
    """Move this program's movable memory off the GPU until its next turn, and return the bytes. Raise GpuShareError."""
    return _client_api().evict()


def move(device: str | int) -> str:
    """Move this program with its memory to another GPU of the same type, and return its UUID. Raise GpuShareError.

    `device` is an index, a name or a UUID. The call returns when the program has moved, within three minutes.
    An interrupt withdraws the move, unless the driver has begun it.
    """
    return _client_api().move(device)


def suspend() -> bool:
    """Take no turns and keep no memory on the GPU until `resume`. Raise GpuShareError.

    Return False if the program was suspended already.
    """
    return _client_api().suspend()


def resume() -> bool:
    """Take turns again after `suspend`, and return False if the program was not suspended. Raise GpuShareError."""
    return _client_api().resume()


def history() -> History:
    """Return this program's turns and waits of the last minutes, with a plot for display. Raise GpuShareError."""
    return _client_api().history()


def _client_api() -> ClientApi:
    """Return the API of this prepared kernel, or else of the program's environment."""
    kernel = (
        getattr(sys.modules.get("_gpushare_kernel.session"), "active_session", None) or kernel_session.active_session
    )
    session = kernel or kernel_session.Session(dict(os.environ))
    return ClientApi(session.client, session.path, session.problem, "kernel" if kernel else "program")
