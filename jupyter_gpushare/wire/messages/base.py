"""Common parts of all messages: types of values and the two base classes."""

from __future__ import annotations

from typing import Annotated

import msgspec

WIRE_VERSION = 1
MAX_LINE = 64 * 1024  # bytes
DOORBELL = b"\0\n"  # "read the page", in both directions

Text = Annotated[str, msgspec.Meta(max_length=1024)]
Identity = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[\w.:@-]+\Z")]
Bytes = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Message(msgspec.Struct, tag_field="type", frozen=True, kw_only=True, omit_defaults=True):
    """Base of all messages. The field `type` is the class's `tag`."""


class Request(Message, frozen=True, kw_only=True):
    """Base of messages that Reply or Error answers with the same `id`.

    A connection that ends before the coordinator has read the request withdraws it.
    """

    id: int = 0
