"""Executor of the scheduler's commands, most of which write pages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ...core.interface import commands as cmd
from ...core.interface import events as ev
from ..clients.client_runtime import ClientRuntime
from ..storage.audit_log import AuditLog
from .move_executor import MoveExecutor

log = logging.getLogger(__name__)


class CommandExecutor:
    """Executor of commands. `on_consequence` receives the events that a command causes.

    `moves` carries out the commands of moves.
    """

    def __init__(
        self,
        runtimes: Mapping[str, ClientRuntime],
        on_consequence: Callable[[ev.Event], None],
        write_quota: Callable[[ClientRuntime], None],
        publish_prefetch: Callable[[ClientRuntime], None],
        audit: AuditLog,
        moves: MoveExecutor,
    ) -> None:
        self._runtimes = runtimes
        self._on_consequence = on_consequence
        self._write_quota = write_quota
        self._publish_prefetch = publish_prefetch
        self._audit = audit
        self._moves = moves
        self.overrun_count = 0  # turns

    def execute(self, command: cmd.Command) -> None:
        runtime = self._runtimes.get(command.client)
        if runtime is None:
            return
        if isinstance(command, (cmd.PrepareMove, cmd.StartMove, cmd.FinishMove)):
            self._moves.execute(command, runtime)
            return
        match command:
            case cmd.Permit():
                runtime.set_permit(command)
            case cmd.CheckUnusedPermit():
                if runtime.is_stopped:
                    log.info("skipping client %s, which is stopped, until it continues", runtime.client_id)
                    self._on_consequence(ev.PermitUnused(runtime.client_id, stopped=True))
                elif runtime.was_refused_entry():
                    self._on_consequence(ev.PermitUnused(runtime.client_id, stopped=False))
            case cmd.UpdateQuota():
                self._write_quota(runtime)
            case cmd.SetResident():
                runtime.set_resident_target(command.device, command.bytes)
            case cmd.SetTurnLimit():
                runtime.set_turn_limit(command.bytes)
            case cmd.Prefetch():
                (runtime.prefetch_devices.add if command.enabled else runtime.prefetch_devices.discard)(command.device)
                self._publish_prefetch(runtime)
            case cmd.SetBudget():
                runtime.set_budget(command.budget)
            case cmd.NotifyUser():
                log.warning("notice for the user of client %s: %s", runtime.client_id, command.message)
            case cmd.ReportOverrun():
                self.overrun_count += 1
                log.warning(
                    "reporting an overrun: client %s has not drained for %.1f s, and other clients wait",
                    runtime.client_id,
                    command.seconds,
                )
            case cmd.InterruptKernel():
                # The Jupyter server reads the request in the snapshot.
                # The coordinator may not signal the kernels of other users.
                log.warning("asking the kernel of client %s to interrupt its cell", runtime.client_id)
                self._audit.record(
                    None, "interrupt", runtime.client_id, None, {"overrun_seconds": round(command.seconds, 1)}
                )
