"""The relay's thread of a process, native/shim/relay.c: waits for a lock that it was named for, and opens the gate."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .gates import ASKING, DECLINED, OPEN, THERE, epoch_of, is_open

if TYPE_CHECKING:
    from .agent import Agent


class Relay:
    """Of one process."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._named = self._done = 0
        self._stray = False
        self._lock = -1

    @property
    def waits(self) -> bool:
        """For a lock, of which it has a descriptor of its own."""
        return self._lock >= 0

    def close(self) -> None:
        if self.waits:
            os.close(self._lock)

    def step(self, now: float) -> None:
        agent = self._agent
        epoch = agent.orders.carry
        if epoch != self._named:
            self._named = epoch
            self._rings()
        if not self._stray:
            return
        self._stray = False
        if agent.contact == THERE:
            agent.link.say(DECLINED)
        else:
            agent.lockmode.ready(now)

    def _rings(self) -> None:
        """Its thread looks at the page, unless it waits for the lock."""
        agent = self._agent
        if self._lock >= 0:
            return
        epoch = agent.orders.carry
        if not epoch:
            self._done = 0
        elif epoch != self._done:
            self._done = epoch
            self._lock = os.dup(agent.files.locks[0])
            agent.host.waits_for_lock(agent, self._lock)

    def has_lock(self) -> None:
        """The relay's thread: `flock` has returned."""
        agent = self._agent
        agent.clock.at(agent.clock.now + agent.random.expovariate(20_000.0), agent, self._opens, self._done)

    def _opens(self, epoch: int) -> None:
        agent = self._agent
        opened = self._open_gate(epoch)
        now_named = agent.orders.carry
        if not opened and now_named in (0, epoch):
            self._stray = True
        agent.kick()
        os.close(self._lock)
        self._lock = -1
        self._rings()

    def _open_gate(self, epoch: int) -> bool:
        agent = self._agent
        word = agent.orders.gate
        if agent.orders.carry != epoch or agent.contact == ASKING or agent.lockmode.active:
            return False
        if is_open(word) or epoch_of(word) == epoch:
            return True
        if not agent.report.waiting:
            return False
        agent.host.tell(f"{agent}: takes over {epoch}")
        agent.open_gate(epoch << 2 | OPEN)
        return True
