"""`import jupyter_gpushare as gs`: what `%gpushare` does, as calls.

They concern the program that makes them: a shared notebook kernel, or a script that `jupyter gpushare run` started.
Each asks the coordinator and waits for its answer for two seconds at most.

Errors are `GpuShareError` and its subclasses: `UsageError` (an argument is not allowed), `NotShared` (this program does
not share its GPU), `Unreachable` (no coordinator answers), `Refused` (the coordinator refuses; its `reason` is a stable
word for programs). All messages are sentences that name what is allowed; a call that fails has changed nothing.
Only where an `Unreachable` says that it is not known, the coordinator had read the request and did not answer.
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
    """How this program and its devices are doing, to be displayed or looked into.

    `.own` is this program's part of the coordinator's snapshot and `.devices` its devices (docs/reference/wire.md);
    `.problem` a sentence on what isn't working. Raises Refused; where no coordinator answers, `.problem` says so.
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
    """Change what is named of this program's quota, or only read it; returns all of it.

    `share`, `limit`: fractions of the device's time, 0 to 1, or text such as "50%". `memory`, `resident`: bytes, text
    such as "8GiB", or a fraction of the device's memory, 0.5 or "50%" (1.0 is all of it, 1 is a byte); None lifts the
    bound. `service`, or `class_`: "online" or "offline". Raises GpuShareError.
    """
    named = {"share": share, "limit": limit, "memory": memory, "resident": resident, "service": service}
    given = {key: value for key, value in {**named, "class": class_}.items() if value is not _UNCHANGED}
    if twice := given.keys() & others.keys():
        raise UsageError(f"{twice.pop()!r} is given twice")
    now = _client_api().quota({**given, **others})
    return {key: now[key] for key in named}


def hold(seconds: float | str | None = None) -> float | None:
    """Keep the GPU between cells for so many seconds or "5min", working or not.

    0: no longer; None: as long as is allowed. Returns the seconds for which it is held, None if it is not. Raises
    GpuShareError.
    """
    left = _client_api().hold(seconds)["hold_seconds_left"]
    return None if left is None else float(left)


def release() -> bool:
    """Give up the rest of the turn, and the hold; False if there was neither. Raises GpuShareError."""
    return bool(_client_api().release()["released"])


def evict() -> int:
    """Move this program's memory off the GPU until its next turn; returns how many bytes. Raises GpuShareError."""
    return _client_api().evict()


def suspend() -> bool:
    """Have no turns, and no memory on the GPU, until `resume`; False if that was so already. Raises GpuShareError."""
    return _client_api().suspend()


def resume() -> bool:
    """Take part again after a `suspend`; False if there was none. Raises GpuShareError."""
    return _client_api().resume()


def history() -> History:
    """This program's turns and waits of the last minutes, to be displayed or looked into. Raises GpuShareError."""
    return _client_api().history()


def _client_api() -> ClientApi:
    """Of this kernel, if it has been prepared as one; else of what the environment says."""
    kernel = (
        getattr(sys.modules.get("_gpushare_kernel.session"), "active_session", None) or kernel_session.active_session
    )
    session = kernel or kernel_session.Session(dict(os.environ))
    return ClientApi(session.client, session.path, session.problem, "kernel" if kernel else "program")
