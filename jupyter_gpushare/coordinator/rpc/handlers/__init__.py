"""Handlers of requests: one file for each subject, with a table of the messages that the file answers.

A handler takes the connection and its message and returns the result, or DEFERRED_REPLY. A handler raises Refused for a
request that cannot be granted, and PermissionError for a request that this user may not make. Both change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ...transport.connection import Connection

Handler: TypeAlias = Callable[[Connection, Any], Any]

DEFERRED_REPLY = object()  # result of a handler that sends the reply later
