"""Identity of this kernel's client, its coordinator's socket, and the cell that runs."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from ..kernel import cell_reporter
from ..wire import address


class Identity(NamedTuple):
    """Identity of a kernel. `client` is "" in a kernel that does not share its GPU; `problem` may give the reason."""

    client: str
    path: str
    problem: str = ""


def current_identity() -> Identity:
    """Return the identity in the kernel's session, or else in the environment of this process.

    Raise address.BadAddress for an invalid address of the socket.
    """
    session: Any = getattr(sys.modules.get("_gpushare_kernel.session"), "active_session", None)
    if session is not None:
        client, path, problem = session.client, session.path, session.problem()
    else:
        client, path, problem = os.environ.get("GPUSHARE_CLIENT", ""), os.environ.get("GPUSHARE_SOCKET", ""), ""
    return Identity(client, address.socket_path(path) if client else "", "" if client else problem)


def running_cell() -> tuple[str, str]:
    """Return the id of the notebook's cell that runs, or "" if it is unknown, and the id of the cell's request."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    get_parent = getattr(getattr(shell, "kernel", None), "get_parent", lambda: None)
    parent = get_parent()
    return cell_reporter.cell_id(parent), cell_reporter.request_id(parent)
