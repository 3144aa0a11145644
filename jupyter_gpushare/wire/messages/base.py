"""What all messages have in common: their types of values, and their two kinds."""

from __future__ import annotations

from typing import Annotated

import msgspec

WIRE_VERSION = 1
MAX_LINE = 64 * 1024
DOORBELL = b"\0\n"  # look at the page; in both directions

Text = Annotated[str, msgspec.Meta(max_length=1024)]
Identity = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[\w.:@-]+\Z")]
Bytes = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Message(msgspec.Struct, tag_field="type", frozen=True, kw_only=True, omit_defaults=True):
    """Its type is `tag`."""


class Request(Message, frozen=True, kw_only=True):
    """Answered by Reply or Error with the same `id`. Whoever hangs up before it is looked at has withdrawn it."""

    id: int = 0
