"""What is looked at once a second, whatever happens: what nobody said, what is used, what is to be kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from ..core.settings import EXCLUSIVE
from .limits import Window
from .members import Member
from .slices import Slices, each

if TYPE_CHECKING:
    from .daemon import Daemon

HEARTBEAT = 1.0  # seconds
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
        self._slices: Slices | None = None

    def stop(self) -> None:
        self._next.cancel()
        if self._slices:
            self._slices.cancel()

    def _beat(self) -> None:
        self._slices = Slices(self._parts(self._loop.time()))

    def _parts(self, now: float) -> Iterator[None]:
        """After each, whatever else is to be done comes first, and may change anything."""
        daemon = self._daemon
        self._try("the settings that are kept", daemon.kept.touch)
        self._try("what changes by itself", daemon.levels.measure, now)
        yield
        yield from self._each_member(daemon.levels.write)
        yield from self._each_member(daemon.registry.maybe_forget)
        yield from self._each(daemon.ports, daemon.look_at_page)
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
        self._next = self._loop.call_at(now + HEARTBEAT, self._beat)

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
        """Those that are there now, but for those that have gone by then."""

        def look_at(item: tuple[_Key, _Thing]) -> None:
            if those.get(item[0]) is item[1]:
                self._try(str(item[0]), look, item[1])

        yield from each(those.items(), look_at)
        yield

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
