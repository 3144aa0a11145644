"""Quotas of clients, read and changed."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from ...core import events as ev
from ...wire import messages
from ...wire.text import quota_line
from .. import requests, shares
from ..daemon import Daemon
from ..peer import Peer
from . import Handler
from .access import owned

log = logging.getLogger(__name__)


class Quotas:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.handlers: dict[type, Handler] = {messages.SetQuota: self._set}

    def _set(self, peer: Peer, request: messages.SetQuota) -> Any:
        member = owned(self._daemon, peer, request.client)
        client = self._daemon.scheduler.clients[request.client]
        capacity = sum(self._daemon.scheduler.devices[uuid].info.memory for uuid in client.devices)
        if request.changes:
            before = client.quota
            quota = before.changed(requests.changes_of(request.changes, capacity))
            self._daemon.feed(ev.QuotaChanged(request.client, quota, member.allocated))
            self._daemon.remember(member)
            self._daemon.audit.note(
                peer, "quota", request.client, msgspec.to_builtins(before), msgspec.to_builtins(client.quota)
            )
            was, now = quota_line(msgspec.to_builtins(before)), quota_line(msgspec.to_builtins(quota))
            log.info("%s changed the quota of %s from %s to %s", peer, request.client, was, now)
        notes = shares.notes(self._daemon.scheduler, client)
        return {**msgspec.to_builtins(client.quota), "device_memory": capacity, "notes": notes}
