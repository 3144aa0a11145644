"""Requests about who is a client, and what it may use."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from .base import Identity, Request, Text


class Register(Request, tag="register", frozen=True, kw_only=True):
    """Announce a client before any of its processes exists. Result: `{"client", "devices": [uuid], "known": bool}`.

    More `gpus` than there are devices are refused ("too_many_devices"). `ends_with_sender`: the process that sends this
    becomes the client's program; when it has ended the client is over, without a Forget.
    """

    client: Identity
    token: Text
    label: Text = ""
    quota: Text = ""
    gpus: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    ends_with_sender: bool = False


class Forget(Request, tag="forget", frozen=True, kw_only=True):
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


ClientRequest = Register | Forget | SetQuota
