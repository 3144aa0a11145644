"""Quotas of clients: read, changed, and changed for one cell."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from ...core import events as ev
from ...core.errors import Refused
from ...core.model import Client
from ...core.quota import Quota
from ...wire import messages
from ...wire.quotas import format_quota
from .. import requests, shares
from ..daemon import Daemon
from ..members import Member
from ..peer import Peer
from ..settings import parse_quota
from . import Handler
from .access import owned

log = logging.getLogger(__name__)


class Quotas:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.handlers: dict[type, Handler] = {messages.SetQuota: self._set, messages.CellQuota: self._set_for_cell}

    def end_cell(self, peer: Peer, member: Member, request: str | None = None) -> None:
        """Take back what the cell of `request`, or without it every cell of that connection, has changed."""
        for sentence in self._take_back(peer, member, request=request):
            log.warning("client %s: %s", member.client, sentence)

    def _set(self, peer: Peer, request: messages.SetQuota) -> Any:
        member = owned(self._daemon, peer, request.client)
        client = self._daemon.scheduler.clients[request.client]
        if request.changes:
            self._change(peer, member, client.quota.changed(requests.changes_of(request.changes, self._memory(client))))
        return self._answer(client)

    def _set_for_cell(self, peer: Peer, request: messages.CellQuota) -> Any:
        member = owned(self._daemon, peer, request.client)
        client = self._daemon.scheduler.clients[request.client]
        if peer not in member.kernels:
            raise Refused("a quota for one cell is set by its kernel: allowed is quota")
        if not request.changes:
            stays = self._take_back(peer, member, number=request.number)
            return {**self._answer(client), "stays": stays}
        values = requests.changes_of(request.changes, self._memory(client))
        before, replaced = client.quota, parse_quota(request.replaced)
        before.changed(values)  # raises for a key that is unknown
        values = member.cell_quotas.allowed(values, before, replaced)
        self._daemon.feed(ev.QuotaChanged(request.client, before.changed(values), member.allocated))
        own = {**msgspec.to_builtins(before), **replaced}
        own = member.cell_quotas.begin(peer, request.number, request.request, values, own)
        self._record(peer, member, before)
        return {**self._answer(client), "replaced": own}

    def _take_back(
        self, peer: Peer, member: Member, number: int | None = None, request: str | None = None
    ) -> list[str]:
        """Set the values of before, together or else one by one. Return sentences on those that are refused."""
        client = self._daemon.scheduler.clients[member.client]
        values = member.cell_quotas.end(peer, client.quota, number, request)
        one_by_one = [{key: value} for key, value in values.items()]
        stays = []
        for part in [values, *one_by_one] if len(values) > 1 else one_by_one:
            try:
                self._change(peer, member, client.quota.changed(part))
                if part is values:
                    break
            except Refused as refused:
                if part is not values:
                    now = format_quota({key: getattr(client.quota, key) for key in part})
                    stays.append(f"{now} stays after %%gpushare, instead of {format_quota(part)}: {refused}")
        return stays

    def _change(self, peer: Peer, member: Member, quota: Quota) -> None:
        before = self._daemon.scheduler.clients[member.client].quota
        self._daemon.feed(ev.QuotaChanged(member.client, quota, member.allocated))
        self._record(peer, member, before)

    def _record(self, peer: Peer, member: Member, before: Quota) -> None:
        self._daemon.remember(member)
        was, now = (msgspec.to_builtins(one) for one in (before, self._daemon.scheduler.clients[member.client].quota))
        self._daemon.audit.note(peer, "quota", member.client, was, now)
        log.info("%s changed the quota of %s from %s to %s", peer, member.client, format_quota(was), format_quota(now))

    def _memory(self, client: Client) -> int:
        return sum(self._daemon.scheduler.devices[uuid].info.memory for uuid in client.devices)

    def _answer(self, client: Client) -> dict[str, Any]:
        notes = shares.notes(self._daemon.scheduler, client)
        return {**msgspec.to_builtins(client.quota), "device_memory": self._memory(client), "notes": notes}
