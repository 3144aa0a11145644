"""What requests are answered with: one file per topic, each with a table of the messages that it answers.

A handler takes the peer and its message and returns the result, or LATER. It raises Refused for what cannot be granted
and PermissionError for what is not the peer's to ask; either has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ..peer import Peer

Handler: TypeAlias = Callable[[Peer, Any], Any]

LATER = object()  # the result of a request that is answered when somebody else has answered
