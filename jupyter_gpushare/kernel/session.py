"""A shared kernel as it sees itself: who it is, and whether sharing works."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from . import cell_quota, cell_reporter, completion, interrupt, magics
from .client_api import ClientApi
from .connection import KernelConnection
from .wait_display import WaitDisplay, publisher


class Session:
    """One kernel's view of its own sharing. `client` is "" in a kernel that is not shared."""

    def __init__(self, env: dict[str, str]) -> None:
        self.client = env.get("GPUSHARE_CLIENT", "")
        self.path = env.get("GPUSHARE_SOCKET", "")
        self.note = env.get("GPUSHARE_NOTE", "")
        self.connection: KernelConnection | None = None
        if self.client and not _shim_is_loaded(env):
            self.note = "unshared: the library in LD_PRELOAD was not loaded into this kernel"
        if env.get("GPUSHARE_DISABLE") == "1":
            self.note = (
                "unshared: it is switched off (GPUSHARE_DISABLE=1): this kernel uses the GPU as if it were alone"
            )
        if self.client and self.path:
            attach = {
                "client": self.client,
                "token": env.get("GPUSHARE_TOKEN", ""),
                "label": env.get("GPUSHARE_LABEL", ""),
                "quota": env.get("GPUSHARE_QUOTA", ""),
            }
            self.connection = KernelConnection(self.path, attach, _coordinator_argv(env))
        self.api = ClientApi(self.client, self.path, self.problem)

    def problem(self) -> str:
        """A sentence on what isn't working, "" if all is well or it is not yet known."""
        kind, _, sentence = self.note.partition(": ")
        if kind == "unreachable" or not sentence:  # that was at the start; since then it may have come, or gone
            if self.connection is None or self.connection.state in ("connecting", "attached"):
                return ""
            sentence = self.connection.reason
            if self.connection.state == "away":
                sentence += " (kernels take turns by lock files until one does)"
        return sentence


active_session: Session | None = None  # of this kernel


def activate(shell: Any, asked_for: bool = False) -> None:
    """Called by `startup.py` in a kernel that our provisioner, launcher or `run` has prepared, or by `%load_ext`."""
    global active_session
    if active_session is not None or not (asked_for or os.environ.get("GPUSHARE_PREPARED")):
        return
    active_session = session = Session(dict(os.environ))
    magics.register(shell, session.api)
    cell_quota.install(shell, cell_quota.CellQuotas(session.api, session.connection))
    interrupt.install(shell)
    completion.register(shell)
    _warn_once(shell, session)
    if session.connection is not None:
        session.connection.start()
        cell_reporter.install(shell, session.connection, _make_wait_display(shell, session.api))


def _warn_once(shell: Any, session: Session) -> None:
    """Print one line in the first cell at which it is known that sharing does not work."""

    def warn_if_known(*_: Any) -> None:
        problem = session.problem()
        working = session.connection is not None and session.connection.state == "attached"
        if problem:
            print("gpushare: sharing isn't working in this kernel: " + problem, file=sys.stderr)
        if problem or working:
            for event in events:
                shell.events.unregister(event, warn_if_known)

    # The second for a first cell that starts before the coordinator could answer.
    events = ("pre_run_cell", "post_run_cell")
    for event in events:
        shell.events.register(event, warn_if_known)


def _make_wait_display(shell: Any, calls: ClientApi) -> WaitDisplay | None:
    kernel = getattr(shell, "kernel", None)
    if getattr(kernel, "iopub_socket", None) is None:
        return None  # IPython in a terminal
    waiting = WaitDisplay(calls.client, calls.wait_status, publisher(kernel))
    os.register_at_fork(after_in_child=waiting.reset_in_child)
    shell.events.register("post_run_cell", waiting.on_cell_ran)
    return waiting


def _coordinator_argv(env: dict[str, str]) -> list[str]:
    try:
        return [str(word) for word in json.loads(env.get("GPUSHARE_COORDINATOR_ARGV", "[]"))]
    except (TypeError, ValueError):
        return []


def _shim_is_loaded(env: dict[str, str]) -> bool:
    """The loader ignores what it can't preload; a program between us and the kernel may clean LD_PRELOAD."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return b"libgpushare.so" in maps.read()
    except OSError:
        return True  # not known: say nothing
