"""Requests about who is a client, and what it may use."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from .base import Identity, Request, Text


class Register(Request, tag="register", frozen=True, kw_only=True):
    """Announce a client before any of its processes exists. Result: `{"client", "devices": [uuid], "known": bool}`.

    More `gpus` than there are devices are refused ("too_many_devices"). `ends_with_sender`: the process that sends this
    becomes the client's program; when it has ended the client is over, without an Unregister.
    """

    client: Identity
    token: Text
    label: Text = ""
    quota: Text = ""
    gpus: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    ends_with_sender: bool = False


class Unregister(Request, tag="unregister", frozen=True, kw_only=True):
    """The client is over; what is left of it may be dropped as soon as its processes are gone."""

    client: Identity


class SetQuota(Request, tag="quota", frozen=True, kw_only=True):
    """Change a client's quota; an empty `changes` only reads it.

    Result: the quota, and beside it `device_memory`, bytes that the client's devices have (0: not known), and `notes`,
    sentences on what of the quota has no effect as the coordinator is set.

    Values may be text ("8GiB", "0.5").
    """

    client: Identity
    changes: dict[str, Any] = {}


class CellQuota(Request, tag="cell_quota", frozen=True, kw_only=True):
    """Change the quota of the client that is attached on this connection, until a cell ends.

    `number` names the change. It is taken back by the same `number` without `changes`, at the end of the Cell with this
    `request`, and at the end of the connection. Result: as of SetQuota, and `replaced`, the values until then, or
    `stays`, sentences on what could not be taken back.

    A kernel that comes to another coordinator in the middle of a cell repeats the change with the first `replaced`.
    """

    client: Identity
    number: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    request: Text = ""
    changes: dict[str, Any] = {}
    replaced: dict[str, Any] = {}


ClientRequest = Register | Unregister | SetQuota | CellQuota
