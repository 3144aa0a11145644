"""What the scheduler decides, carried out on the pages of processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ..core import commands as cmd
from ..core import events as ev
from .audit import Audit
from .members import Member

log = logging.getLogger(__name__)


class Orders:
    """Carries commands out. What that brings about at once goes to `follows`, as events."""

    def __init__(
        self,
        members: Mapping[str, Member],
        follows: Callable[[ev.Event], None],
        write_limits: Callable[[Member], None],
        bring_back: Callable[[Member], None],
        audit: Audit,
    ) -> None:
        self._members = members
        self._follows = follows
        self._write_limits = write_limits
        self._bring_back = bring_back
        self._audit = audit
        self.overruns = 0  # turns that did not end in time

    def carry_out(self, command: cmd.Command) -> None:
        member = self._members.get(command.client)
        if member is None:
            return
        match command:
            case cmd.Permit():
                member.set_permit(command)
            case cmd.Probe():
                if member.stopped:
                    log.info("client %s is stopped: it is passed over until it goes on", member.client)
                    self._follows(ev.NotTaken(member.client, stopped=True))
                elif member.tries_in_vain():
                    self._follows(ev.NotTaken(member.client, stopped=False))
            case cmd.Limits():
                self._write_limits(member)
            case cmd.SetResident():
                member.set_resident(command.bytes)
            case cmd.RestoreAhead():
                member.comes_ahead = command.wanted
                self._bring_back(member)
            case cmd.SetBudget():
                member.set_budget(command.budget)
            case cmd.Notice():
                log.warning("client %s: %s", member.client, command.message)
            case cmd.Overrun():
                self.overruns += 1
                log.warning(
                    "client %s has not drained for %.1f s: its turn is not over and others wait",
                    member.client,
                    command.seconds,
                )
            case cmd.Interrupt():
                # Its Jupyter server sees in the snapshot that it is asked to: it may signal it, and knows how.
                log.warning("client %s: its kernel is asked to interrupt its cell", member.client)
                self._audit.note(None, "interrupt", member.client, None, {"overrun_seconds": round(command.seconds, 1)})
