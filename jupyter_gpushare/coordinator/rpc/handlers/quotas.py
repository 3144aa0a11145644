"""Requests that read or change the quota of a client, or change the quota for one cell."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from ....core.base.errors import Refused
from ....core.base.quota import Quota
from ....core.interface import events as ev
from ....core.state.model import Client
from ....wire import messages
from ....wire.quotas import format_quota
from ...clients.client_runtime import ClientRuntime
from ...config import quota_parsing
from ...config.live_settings import parse_quota
from ...engine.coordinator import Coordinator
from ...transport.connection import Connection
from ...views import share_notes
from . import Handler
from .authorization import client_owned_by

log = logging.getLogger(__name__)


class QuotaHandlers:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.handlers: dict[type, Handler] = {messages.SetQuota: self._set, messages.CellQuota: self._set_for_cell}

    def end_cell(self, connection: Connection, runtime: ClientRuntime, request: str | None = None) -> None:
        """Restore the quota after the cell of `request`, or after all cells of the connection without it."""
        for message in self._restore_quota(connection, runtime, request=request):
            log.warning("keeping a value of the quota of client %s: %s", runtime.client_id, message)

    def _set(self, connection: Connection, request: messages.SetQuota) -> Any:
        runtime = client_owned_by(self._coordinator, connection, request.client)
        client = self._coordinator.scheduler.clients[request.client]
        if request.changes:
            self._change(
                connection,
                runtime,
                client.quota.with_changes(quota_parsing.parse_changes(request.changes, self._device_memory(client))),
            )
        return self._quota_fields(client)

    def _set_for_cell(self, connection: Connection, request: messages.CellQuota) -> Any:
        runtime = client_owned_by(self._coordinator, connection, request.client)
        client = self._coordinator.scheduler.clients[request.client]
        if connection not in runtime.kernels:
            raise Refused("only the kernel of a cell may set a cell quota: use the quota of the client")
        if not request.changes:
            stays = self._restore_quota(connection, runtime, number=request.number)
            return {**self._quota_fields(client), "stays": stays}
        values = quota_parsing.parse_changes(request.changes, self._device_memory(client))
        before, replaced = client.quota, parse_quota(request.replaced)
        before.with_changes(values)  # raises for an unknown key
        values = runtime.cell_quotas.allowed_values(values, before, replaced)
        self._coordinator.dispatch(ev.QuotaChanged(request.client, before.with_changes(values), runtime.allocated))
        own = {**msgspec.to_builtins(before), **replaced}
        own = runtime.cell_quotas.add(connection, request.number, request.request, values, own)
        self._record(connection, runtime, before)
        return {**self._quota_fields(client), "replaced": own}

    def _restore_quota(
        self, connection: Connection, runtime: ClientRuntime, number: int | None = None, request: str | None = None
    ) -> list[str]:
        """Set the values before the cell, together or else one by one. Return messages on refused values."""
        client = self._coordinator.scheduler.clients[runtime.client_id]
        values = runtime.cell_quotas.remove(connection, client.quota, number, request)
        one_by_one = [{key: value} for key, value in values.items()]
        stays = []
        for changes in [values, *one_by_one] if len(values) > 1 else one_by_one:
            try:
                self._change(connection, runtime, client.quota.with_changes(changes))
                if changes is values:
                    break
            except Refused as refused:
                if changes is not values:
                    now = format_quota({key: getattr(client.quota, key) for key in changes})
                    stays.append(f"{now} stays after %%gpushare, instead of {format_quota(changes)}: {refused}")
        return stays

    def _change(self, connection: Connection, runtime: ClientRuntime, quota: Quota) -> None:
        before = self._coordinator.scheduler.clients[runtime.client_id].quota
        self._coordinator.dispatch(ev.QuotaChanged(runtime.client_id, quota, runtime.allocated))
        self._record(connection, runtime, before)

    def _record(self, connection: Connection, runtime: ClientRuntime, before: Quota) -> None:
        self._coordinator.save_client(runtime)
        was, now = (
            msgspec.to_builtins(one) for one in (before, self._coordinator.scheduler.clients[runtime.client_id].quota)
        )
        self._coordinator.audit.record(connection, "quota", runtime.client_id, was, now)
        log.info(
            "%s changed the quota of %s from %s to %s",
            connection,
            runtime.client_id,
            format_quota(was),
            format_quota(now),
        )

    def _device_memory(self, client: Client) -> int:
        return sum(self._coordinator.scheduler.devices[uuid].info.memory for uuid in client.devices)

    def _quota_fields(self, client: Client) -> dict[str, Any]:
        notes = share_notes.share_notes(self._coordinator.scheduler, client)
        return {**msgspec.to_builtins(client.quota), "device_memory": self._device_memory(client), "notes": notes}
