"""Which client this kernel is, where its coordinator listens, and which cell of the notebook runs."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from ..kernel import cell_reporter
from ..wire import address


class Identity(NamedTuple):
    """`client` is "" in a kernel that is not shared; `problem` then says why, if that is known."""

    client: str
    path: str
    problem: str = ""


def current_identity() -> Identity:
    """Of this process: as its kernel's session knows it, else by the environment.

    Raises address.BadAddress when the socket's address cannot be one.
    """
    session: Any = getattr(sys.modules.get("_gpushare_kernel.session"), "active_session", None)
    if session is not None:
        client, path, problem = session.client, session.path, session.problem()
    else:
        client, path, problem = os.environ.get("GPUSHARE_CLIENT", ""), os.environ.get("GPUSHARE_SOCKET", ""), ""
    return Identity(client, address.socket_path(path) if client else "", "" if client else problem)


def running_cell() -> tuple[str, str]:
    """The notebook's cell that runs here, "" if that is not known, and the request that it runs by."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    get_parent = getattr(getattr(shell, "kernel", None), "get_parent", lambda: None)
    parent = get_parent()
    return cell_reporter.cell_id(parent), cell_reporter.request_id(parent)
