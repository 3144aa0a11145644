"""What is shown: how things stand, what has happened, what a client waits for, what is inside a process."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

from ...core.errors import UnknownProcess
from ...wire import messages
from .. import waiting
from ..daemon import Daemon
from ..inspection import Inspections
from ..limits import TooMany
from ..peer import Peer
from ..replies import refuse, reply
from . import LATER, Handler
from .access import owned

_PATIENCE = 4.0  # seconds, with a disk
_MOST_ASKED = 4  # questions of one user to the disk at the same time


class Views:
    """`inspections`: questions to processes, whose answers come as messages."""

    def __init__(self, daemon: Daemon, inspections: Inspections) -> None:
        self._daemon = daemon
        self._inspections = inspections
        self._asking: Counter[str] = Counter()  # users that wait for the disk
        self.handlers: dict[type, Handler] = {
            messages.Status: self._status,
            messages.Subscribe: self._subscribe,
            messages.History: lambda _, request: daemon.tell_history(request.after, request.client),
            messages.WaitStatus: self._outlook,
            messages.Inspect: self._inspect,
            messages.Usage: self._usage,
        }

    def _status(self, peer: Peer, request: messages.Status) -> Any:
        self._daemon.followers.ask(peer, lambda views: reply(peer, request.id, views.of(peer)))
        return LATER

    def _subscribe(self, peer: Peer, request: messages.Subscribe) -> Any:
        self._daemon.followers.add(peer, lambda views: reply(peer, request.id, views.of(peer)))
        return LATER

    def _outlook(self, peer: Peer, request: messages.WaitStatus) -> Any:
        member = owned(self._daemon, peer, request.client)
        return waiting.status(self._daemon.scheduler, member.client, peer.user, self._daemon.now)

    def _inspect(self, peer: Peer, request: messages.Inspect) -> Any:
        port = next((port for port in self._daemon.ports.values() if port.peer.pid == request.pid), None)
        member = self._daemon.registry.member_of(port) if port else None
        if port is None or member is None:
            raise UnknownProcess(f"process {request.pid} is no client's process here")
        owned(self._daemon, peer, member.client)
        client = self._daemon.scheduler.clients[member.client]
        result = {
            "pid": request.pid,
            "client": member.client,
            "label": client.label if client.tenant == peer.user else "",
            "coordinator": {"pid": os.getpid(), "socket": self._daemon.socket_path},
            "page": port.page.values(),
        }

        def answered(details: dict[str, Any] | None) -> None:
            reply(peer, request.id, {**result, "details": details})

        self._inspections.ask(port, answered)
        return LATER

    def _usage(self, peer: Peer, request: messages.Usage) -> Any:
        if self._asking[peer.user] >= _MOST_ASKED:
            raise TooMany("this user asks for usage as often as anybody may: wait for the answers")
        self._asking[peer.user] += 1
        user = "" if peer.admin else peer.user
        loop = asyncio.get_running_loop()
        why = "the journal's disk does not answer: try again later"
        late = loop.call_later(_PATIENCE, refuse, peer, request.id, "unavailable", why)

        def answered(result: dict[str, Any]) -> None:
            self._asking[peer.user] -= 1
            if loop.time() < late.when():
                late.cancel()
                reply(peer, request.id, result)

        self._daemon.tell_usage(request.since, user, answered)
        return LATER
