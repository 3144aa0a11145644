"""Session of a shared kernel: its client and connection, the start of all parts of this package, and one warning."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from . import cell_quota, cell_reporter, interrupt, magics
from .client_api import ClientApi
from .connection import KernelConnection
from .node_moves import NodeMoves, restore_variables
from .wait_display import WaitDisplay, publisher


class Session:
    """GPU sharing of one kernel. `client` is "" in a kernel that does not share its GPU."""

    def __init__(self, env: dict[str, str]) -> None:
        self.client = env.get("GPUSHARE_CLIENT", "")
        self.path = env.get("GPUSHARE_SOCKET", "")
        self.note = env.get("GPUSHARE_NOTE", "")
        self.restart_reason = env.get("GPUSHARE_RESTART_REASON", "")
        if self.note.startswith("defaults: "):  # GPU sharing works, and the first cell shows the sentence
            self.restart_reason, self.note = self.restart_reason or self.note.partition(": ")[2], ""
        self.connection: KernelConnection | None = None
        if self.client and not _shim_is_loaded(env):
            self.note = "unshared: the library in LD_PRELOAD is not loaded, so this kernel uses the GPU without turns"
        if env.get("GPUSHARE_DISABLE") == "1":
            self.note = "unshared: GPUSHARE_DISABLE=1 turns sharing off, so this kernel uses the GPU without turns"
        if self.client and self.path:
            attach = {
                "client": self.client,
                "token": env.get("GPUSHARE_TOKEN", ""),
                "label": env.get("GPUSHARE_LABEL", ""),
                "quota": env.get("GPUSHARE_QUOTA", ""),
            }
            # The provisioner's note has the last line of a coordinator that has ended at its start.
            note = self.note.partition("unreachable: ")[2]
            failed_start = note if note.startswith(f"no coordinator answers at {self.path}, ") else ""
            self.connection = KernelConnection(self.path, attach, _coordinator_argv(env), failed_start)
        self.api = ClientApi(self.client, self.path, self.problem)

    def problem(self) -> str:
        """Return a sentence on a fault of GPU sharing, or "" if there is none so far."""
        kind, _, message = self.note.partition(": ")
        # A note "unreachable" is from the start of the kernel, so the connection has the present state.
        if kind == "unreachable" or not message:
            if self.connection is None or self.connection.state in ("connecting", "attached"):
                return ""
            message = self.connection.reason
            if self.connection.state == "away":
                message += " (until a coordinator answers, kernels take turns by lock files)"
        return message


active_session: Session | None = None  # of this kernel


def activate(shell: Any, is_requested: bool = False) -> None:
    """Start GPU sharing in a prepared kernel, or after `%load_ext` (`is_requested`).

    `startup.py` calls the function in each kernel. The provisioner, the launcher and `run` prepare kernels.
    """
    global active_session
    if active_session is not None or not (is_requested or os.environ.get("GPUSHARE_PREPARED")):
        return
    active_session = session = Session(dict(os.environ))
    connection = session.connection
    is_alone = lambda: connection is None or connection.runs_alone(cell_reporter.current_request.get())  # noqa: E731
    magics.register(shell, session.api, NodeMoves(shell, dict(os.environ), is_alone))
    cell_quota.install(shell, cell_quota.CellQuotas(session.api, session.connection))
    interrupt.install(shell)
    _warn_once(shell, session)
    if session.connection is not None:
        session.connection.start()
        cell_reporter.install(shell, session.connection, _make_wait_display(shell, session.api))
    variables = os.environ.pop("GPUSHARE_VARIABLES", "")  # of the kernel before its move to this node
    if variables:
        session.restart_reason += ", " + restore_variables(shell, variables)


def _warn_once(shell: Any, session: Session) -> None:
    """Print one line in the first cell after a fault of GPU sharing is found, and one about another node."""

    def show_restart(*_: Any) -> None:
        print(f"gpushare: {session.restart_reason}", file=sys.stderr)
        shell.events.unregister("pre_run_cell", show_restart)

    if session.restart_reason:
        shell.events.register("pre_run_cell", show_restart)

    def warn_if_known(*_: Any) -> None:
        problem = session.problem()
        is_working = session.connection is not None and session.connection.state == "attached"
        if problem:
            print("gpushare: GPU sharing does not work in this kernel: " + problem, file=sys.stderr)
        if problem or is_working:
            for event in events:
                shell.events.unregister(event, warn_if_known)

    # The second event serves a first cell that starts before the coordinator has answered.
    events = ("pre_run_cell", "post_run_cell")
    for event in events:
        shell.events.register(event, warn_if_known)


def _make_wait_display(shell: Any, calls: ClientApi) -> WaitDisplay | None:
    kernel = getattr(shell, "kernel", None)
    if getattr(kernel, "iopub_socket", None) is None:
        return None  # IPython in a terminal
    wait_display = WaitDisplay(calls.client, calls.wait_status, publisher(kernel))
    os.register_at_fork(after_in_child=wait_display.reset_in_child)
    shell.events.register("post_run_cell", wait_display.on_cell_ran)
    return wait_display


def _coordinator_argv(env: dict[str, str]) -> list[str]:
    try:
        return [str(word) for word in json.loads(env.get("GPUSHARE_COORDINATOR_ARGV", "[]"))]
    except (TypeError, ValueError):
        return []


def _shim_is_loaded(env: dict[str, str]) -> bool:
    """Return true if this process has the shim.

    The loader ignores a library that it cannot preload, and a program that starts the kernel may remove LD_PRELOAD.
    """
    try:
        with open("/proc/self/maps", "rb") as maps:
            return b"libgpushare.so" in maps.read()
    except OSError:
        return True  # unknown, so without a warning
