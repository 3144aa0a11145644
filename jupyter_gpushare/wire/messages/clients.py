"""Requests that register clients and change their quotas."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from .base import Identity, Request, Text


class Register(Request, tag="register", frozen=True, kw_only=True):
    """Request to register a client before any of its processes exists.

    Result: `{"client", "devices": [uuid], "known": bool}`.
    The coordinator refuses more `gpus` than there are devices ("too_many_devices").
    A refusal for lack of room, which the end of other clients makes, has the reason "no_room".
    With `ends_with_sender`, the sending process is the client's program: its end unregisters the client.
    """

    client: Identity
    token: Text
    label: Text = ""
    quota: Text = ""
    gpus: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    ends_with_sender: bool = False


class Bind(Request, tag="bind", frozen=True, kw_only=True):
    """Request of a process that is about to initialise CUDA: the devices that its client uses from now on.

    The coordinator chooses the devices again, by the work on each device, unless the client has other processes.
    Result: `{"devices": [uuid]}`, which is empty on a host with one device, as for Register.
    """

    client: Identity
    token: Text


class Unregister(Request, tag="unregister", frozen=True, kw_only=True):
    """Request to remove a client as soon as its last process has ended.

    `is_orphan`: the keeper of a kernel is about to end it, because no Jupyter server has adopted it for too long. The
    usage and the audit log have a record of that.
    """

    client: Identity
    is_orphan: bool = False


class SetQuota(Request, tag="quota", frozen=True, kw_only=True):
    """Request to change a client's quota; an empty `changes` only reads the quota.

    Values may be text ("8GiB", "0.5").
    Result: the quota with `device_memory` and `notes`.
    `device_memory` has the bytes of the client's devices (0 if they are unknown).
    `notes` has a sentence on each field that has no effect under the coordinator's settings.
    """

    client: Identity
    changes: dict[str, Any] = {}


class CellQuota(Request, tag="cell_quota", frozen=True, kw_only=True):
    """Request to change the quota of the client that is attached on this connection, until a cell ends.

    `number` identifies the change.
    Three events revert the change: a request with the same `number` and no `changes`, the end of the cell `request`,
    and the end of the connection.
    Result: that of SetQuota with `replaced`, the values before, or with `stays`, a sentence on each value that could
    not be reverted.
    After a change of coordinators within a cell, a kernel repeats the request with the first `replaced`.
    """

    client: Identity
    number: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    request: Text = ""
    changes: dict[str, Any] = {}
    replaced: dict[str, Any] = {}


ClientRequest = Register | Bind | Unregister | SetQuota | CellQuota
