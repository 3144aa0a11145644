"""What is looked at once a second, whatever happens: what nobody said, what is used, what is to be kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from ..core import events as ev
from ..core.settings import EXCLUSIVE
from .limits import Window
from .members import Member
from .ports import ProcessPort

if TYPE_CHECKING:
    from .daemon import Daemon

HEARTBEAT = 1.0  # seconds
AT_A_TIME = 16  # clients or processes: a millisecond or so
REMINDER = 3600.0  # seconds until a fault that lasts is logged again

_Key = TypeVar("_Key")
_Thing = TypeVar("_Thing")

log = logging.getLogger(__name__)


class Heartbeat:
    """Of a daemon, from the next turn of its event loop on until `stop`. A little at a time: turns come first."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._loop = asyncio.get_running_loop()
        self._faults = Window(REMINDER, self._loop.time)
        self._next: asyncio.Handle = self._loop.call_later(0, self._beat)

    def stop(self) -> None:
        self._next.cancel()

    def _beat(self) -> None:
        began = self._loop.time()
        self._go_on(began, self._parts(began))

    def _go_on(self, began: float, rest: Iterator[None]) -> None:
        if next(rest, True):
            self._next = self._loop.call_at(began + HEARTBEAT, self._beat)
        else:
            self._next = self._loop.call_later(0, self._go_on, began, rest)  # behind what is there to be read by now

    def _parts(self, now: float) -> Iterator[None]:
        """After each, whatever else is to be done comes first, and may change anything."""
        daemon = self._daemon
        self._try("the settings that are kept", daemon.kept.touch)
        self._try("what changes by itself", daemon.levels.write, now)
        yield from self._each_member(daemon.registry.maybe_forget)
        yield from self._each(daemon.ports, self._overheard)
        self._try("devices that stayed locked", daemon.orders.free_late)
        self._try("locks that nobody needs", self._find_strays)
        yield
        self._try("what the driver says", self._ask_driver, now)
        yield from self._each_member(self._look_at)
        self._try("what there is no room for", daemon.levels.make_room, daemon.ports.values())
        self._try("what is remembered", daemon.remembered.keep, daemon.members.values(), daemon.scheduler.clients, now)
        yield from self._each_member(lambda member: daemon.usage.look_at(member, self._loop.time()))
        self._try("usage", daemon.usage.keep, now)
        yield
        self._try("programs outside", daemon.outside.look, daemon.scheduler.devices, daemon.ports.values())
        yield
        self._try("utilisation", daemon.utilisation.look, daemon.scheduler, daemon.members.values(), self._loop.time())
        if daemon.members:
            self._try("followers", daemon.followers.changed)

    def _try(self, what: str, look: Callable[..., object], *at: object) -> None:
        """One at fault is not to harm the others."""
        try:
            look(*at)
        except Exception:
            if self._faults.count(what) == 1:
                log.exception("bug: %s; story:\n%s", what, "\n".join(self._daemon.scheduler.story()))

    def _each_member(self, look: Callable[[Member], None]) -> Iterator[None]:
        return self._each(self._daemon.members, look)

    def _each(self, those: Mapping[_Key, _Thing], look: Callable[[_Thing], None]) -> Iterator[None]:
        """Those that are there now, but for whoever has gone by then."""
        for number, (key, one) in enumerate(list(those.items()), start=1):
            if those.get(key) is one:
                self._try(str(key), look, one)
            if number % AT_A_TIME == 0:
                yield
        yield

    def _find_strays(self) -> None:
        for member in self._daemon.orders.strays():
            log.info("client %s has a lock that nobody needs, and nobody has said so", member.client)
            self._daemon.feed(ev.LockStray(member.client))

    def _ask_driver(self, now: float) -> None:
        for uuid, reason in self._daemon.driver.look(now):
            log.warning("device %s: %s", uuid, reason or "works again")
            self._daemon.set_health(uuid, reason)

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
        process, member = daemon.scheduler.processes.get(port.number), daemon.registry.member_of(port)
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
