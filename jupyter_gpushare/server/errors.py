"""Refusals of the REST API: each is JSON with a word for programs and a sentence for people."""

from __future__ import annotations

from http.client import responses
from typing import Any

from tornado.web import HTTPError

from ..wire.client import CoordinatorError

# The coordinator's words for its refusals; all others are 400.
_STATUS = {
    "forbidden": 403,
    "unknown_client": 404,
    "unknown_device": 404,
    "conflict": 409,
    "too_many": 429,
    "internal": 500,
    "unreachable": 503,
    "unavailable": 503,
}
# Words for refusals that did not come from the coordinator, by status.
_WORDS = {400: "invalid", 403: "forbidden", 404: "unknown_route", 405: "method_not_allowed", 413: "too_large"}


class Refused(HTTPError):
    """A request that is answered with `status` and the JSON `{"message", "reason"}`."""

    def __init__(self, status: int, word: str, message: str) -> None:
        super().__init__(status, message)
        self.word = word
        self.text = message


def refusal(error: CoordinatorError) -> Refused:
    """What a front end sees of the coordinator's refusal."""
    return Refused(_STATUS.get(error.reason, 400), error.reason, str(error))


def body(status: int, error: BaseException | None, authenticated: bool) -> dict[str, Any]:
    """The JSON for any failed request, also for those that tornado or jupyter_server refuse by themselves."""
    if isinstance(error, Refused):
        return {"message": error.text, "reason": error.word}
    if status == 403 and not authenticated:
        return {"message": "Log in, or send the server's token.", "reason": "unauthenticated"}
    message = responses.get(status, "Unknown error")
    if isinstance(error, HTTPError):
        if error.log_message:
            message = error.log_message % error.args if error.args else error.log_message.replace("%%", "%")
    elif status >= 500:
        message = "An unexpected error; the Jupyter server's log has the details."
    return {"message": message, "reason": _WORDS.get(status, "internal" if status >= 500 else "invalid")}
