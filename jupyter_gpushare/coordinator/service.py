"""What each message means: from a decoded line to an event, a request answered, or a peer refused."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import msgspec

from ..core.errors import IllegalEvent, Refused
from ..wire import messages
from .daemon import Daemon
from .handlers import LATER, Handler
from .handlers.administration import Administration
from .handlers.clients import Clients
from .handlers.quotas import Quotas
from .handlers.turns import Turns
from .handlers.views import Views
from .inspection import Inspections
from .peer import Peer
from .replies import refuse, reply
from .sessions import Sessions

log = logging.getLogger(__name__)
_BELL = messages.DOORBELL[:-1]
_decoder = msgspec.json.Decoder(messages.Incoming)


class Service:
    """Answers the peers of one daemon; the edge calls `connected`, `line` and `ended`."""

    def __init__(self, daemon: Daemon, stop: Callable[[], None]) -> None:
        self._daemon = daemon
        inspections = Inspections()
        clients = Clients(daemon)
        quotas = Quotas(daemon)
        self._sessions = Sessions(daemon, clients, quotas, inspections)
        self._handlers: dict[type, Handler] = {
            **clients.handlers,
            **quotas.handlers,
            **Turns(daemon).handlers,
            **Views(daemon, inspections).handlers,
            **Administration(daemon, stop).handlers,
        }

    def connected(self, peer: Peer) -> None:
        self._sessions.begin(peer)

    def ended(self, peer: Peer) -> None:
        self._daemon.followers.discard(peer)
        self._sessions.end(peer)

    def is_stranger(self, peer: Peer) -> bool:
        """Whether it is neither a process's nor a kernel's connection, as far as it has said."""
        return self._sessions.is_stranger(peer)

    def line(self, peer: Peer, line: bytes) -> None:
        """Handle one line. Whatever it says, only this peer is affected by its mistakes."""
        if len(line) > messages.MAX_LINE:
            refuse(peer, 0, "too_long", f"a line is longer than {messages.MAX_LINE} bytes")
            peer.drop()
            return
        try:
            message = None if line == _BELL else _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            refuse(peer, _id_of(line), "malformed", f"not a message: {error}")
            return
        try:
            if message is None:
                self._sessions.bell(peer)
            elif not self._sessions.take(peer, message):
                self._answer(peer, message)
        except IllegalEvent as error:
            log.warning("%s dropped: %s", peer, error)
            refuse(peer, getattr(message, "id", 0), error.reason, str(error))
            peer.drop()
        except Exception:
            log.exception("bug: %s sent %.200r; story:\n%s", peer, line, "\n".join(self._daemon.scheduler.story()))
            refuse(peer, getattr(message, "id", 0), "internal", "a bug of the coordinator; see its log")
            peer.drop()
        finally:
            for descriptor in peer.take_descriptors():
                os.close(descriptor)

    def _answer(self, peer: Peer, request: Any) -> None:
        if peer.hung_up:
            # While this process was stopped or busy, who asked gave up, and was told that nothing comes of it.
            log.info("%s hung up before its %s was looked at", peer, type(request).__name__.lower())
            return
        try:
            result = self._handlers[type(request)](peer, request)
        except PermissionError as error:
            refuse(peer, request.id, "forbidden", str(error))
        except Refused as error:
            refuse(peer, request.id, error.reason, str(error))
        else:
            if result is not LATER:
                reply(peer, request.id, result)


def _id_of(line: bytes) -> int:
    """The id of a request that is otherwise wrong, so that its sender learns which one it was."""
    try:
        number = msgspec.json.decode(line).get("id", 0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        return 0
    return number if type(number) is int else 0
