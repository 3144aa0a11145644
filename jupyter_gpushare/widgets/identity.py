"""Which client this kernel is, and where its coordinator listens."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from ..wire import address


class Identity(NamedTuple):
    """`client` is "" in a kernel that is not shared; `problem` then says why, if that is known."""

    client: str
    path: str
    problem: str = ""


def find() -> Identity:
    """Of this process: as its kernel's session knows it, else by the environment.

    Raises address.BadAddress when the socket's address cannot be one.
    """
    session: Any = getattr(sys.modules.get("_gpushare_kernel.session"), "active", None)
    if session is not None:
        client, path, problem = session.client, session.path, session.problem()
    else:
        client, path, problem = os.environ.get("GPUSHARE_CLIENT", ""), os.environ.get("GPUSHARE_SOCKET", ""), ""
    return Identity(client, address.socket_path(path) if client else "", "" if client else problem)
