"""What is looked at once a second, whatever happens: what nobody said, what is used, what is to be kept."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..core import events as ev
from ..core.settings import EXCLUSIVE
from .members import Member
from .ports import ProcessPort

if TYPE_CHECKING:
    from .daemon import Daemon

HEARTBEAT = 1.0  # seconds

log = logging.getLogger(__name__)


class Heartbeat:
    """Of a daemon, from the next turn of its event loop on until `stop`."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(0, self._beat)

    def stop(self) -> None:
        self._next.cancel()

    def _beat(self) -> None:
        self._next = self._loop.call_later(HEARTBEAT, self._beat)
        daemon, now = self._daemon, self._loop.time()
        daemon.kept.touch()
        for member in list(daemon.members.values()):
            daemon.maybe_forget(member)
        for port in list(daemon.ports.values()):
            self._overheard(port)
        daemon.orders.free_late()
        for member in daemon.orders.strays():
            log.info("client %s has a lock that nobody needs, and nobody has said so", member.client)
            daemon.feed(ev.LockStray(member.client))
        for uuid, reason in daemon.driver.look(now):
            log.warning("device %s: %s", uuid, reason or "works again")
            daemon.set_health(uuid, reason)
        for member in list(daemon.members.values()):
            self._look_at(member)
        daemon.outside.look(daemon.scheduler.devices, daemon.ports.values())
        daemon.utilisation.look(daemon.scheduler, daemon.members.values(), now)
        daemon.levels.write(now)
        daemon.remembered.keep(daemon.members.values(), daemon.scheduler.clients, now)
        daemon.usage.look(daemon.members.values(), now)
        if daemon.members:
            daemon.followers.changed()

    def _look_at(self, member: Member) -> None:
        daemon = self._daemon
        daemon.levels.look(member)
        if daemon.scheduler.settings.sharing != EXCLUSIVE and (progress := daemon.progress.news(member)):
            daemon.feed(progress)
        if member.comes_ahead:
            daemon.levels.bring_back(member)

    def _overheard(self, port: ProcessPort) -> None:
        """What its page says and nobody told us, as after a lost message: it has drained, threads stand at the gate."""
        daemon = self._daemon
        process, member = daemon.scheduler.processes.get(port.number), daemon.member_of(port)
        if process is None or member is None:
            return
        grant = process.client.grant
        if grant and not process.drained and port.drained and port.page.epoch == process.epoch:
            log.info("%s has drained, and nobody has said so", port.peer)
            daemon.feed(ev.Drained(port.number, process.epoch))
        grant = process.client.grant
        # Also while its client's turn ends: what another process has on the device may wait for that thread.
        waiting = port.page.report.waiting and not process.wants and not (grant and grant.has_open(process))
        if waiting and not member.stopped:
            log.info("%s stands at the gate, and nobody has said so", port.peer)
            daemon.feed(ev.Wanted(port.number))
