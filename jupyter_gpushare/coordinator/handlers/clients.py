"""Clients come and go: announced by a request, by a process or by a kernel."""

from __future__ import annotations

import logging
from typing import Any

from ...core.errors import Refused
from ...core.placement import Request
from ...wire import messages
from .. import requests
from ..daemon import Daemon
from ..members import Member
from ..peer import Peer
from . import Handler
from .access import owned

log = logging.getLogger(__name__)


class Clients:
    """The clients of one daemon, as peers name them."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.handlers: dict[type, Handler] = {
            messages.Register: self._register,
            messages.Unregister: self._forget,
        }

    def member(self, peer: Peer, message: messages.Hello | messages.Attach | messages.Register) -> Member:
        """The client that the message is about, made if need be. Raises PermissionError and Refused."""
        gpus = message.gpus if isinstance(message, messages.Register) else None
        settings = self._daemon.settings
        tenants = self._daemon.scheduler.placing.placement.tenants
        default = tenants.lowered(settings.default_quota, settings.tenancy.of(peer.user))
        try:
            quota, request = requests.read(message.quota, default, gpus or 1)
        except Refused as error:
            if gpus is not None:
                raise
            log.warning("%s: quota %r not used: %s", peer, message.quota, error)
            quota, request = default, Request()
        # Whose program is not about to start has its devices already.
        member = self._daemon.registry.member(
            message.client, message.token, peer.user, message.label, quota, request, running=gpus is None
        )
        member.forgotten = False
        return member

    def _register(self, peer: Peer, request: messages.Register) -> Any:
        known = request.client in self._daemon.members
        member = self.member(peer, request)
        if request.ends_with_sender:
            self._daemon.registry.programs.watch(member, peer)
        self._daemon.registry.maybe_forget(member)
        client = self._daemon.scheduler.clients[request.client]
        visible = list(client.devices) if len(self._daemon.scheduler.placing.placement.offered) > 1 else []
        return {"client": request.client, "devices": visible, "known": known}

    def _forget(self, peer: Peer, request: messages.Unregister) -> Any:
        member = owned(self._daemon, peer, request.client)
        # One's own come and go with their kernels.
        if self._daemon.scheduler.clients[request.client].tenant != peer.user:
            self._daemon.audit.note(peer, "forget", request.client, "known", "forgotten")
        member.forgotten = True
        self._daemon.registry.maybe_forget(member)
        return {}
