"""Errors of the REST API: JSON with a reason for programs and a message for users."""

from __future__ import annotations

from http.client import responses
from typing import Any

from tornado.web import HTTPError

from ..wire.client import CoordinatorError

# HTTP status by the coordinator's reason; other reasons give 400.
_STATUS = {
    "forbidden": 403,
    "unknown_client": 404,
    "unknown_device": 404,
    "unknown_node": 404,
    "conflict": 409,
    "too_many": 429,
    "internal": 500,
    "unreachable": 503,
    "unavailable": 503,
}
# Reason by HTTP status, for errors that do not come from the coordinator.
_REASONS = {400: "invalid", 403: "forbidden", 404: "unknown_route", 405: "method_not_allowed", 413: "too_large"}


class ApiError(HTTPError):
    """Error whose response has the HTTP status and the JSON `{"message", "reason"}`."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(status, message)
        self.api_reason = reason  # HTTPError.reason is the phrase of the status line
        self.text = message


def refusal(error: CoordinatorError) -> ApiError:
    """Convert an error of the coordinator into an error for front ends."""
    return ApiError(_STATUS.get(error.reason, 400), error.reason, str(error))


def body(status: int, error: BaseException | None, authenticated: bool) -> dict[str, Any]:
    """Return the JSON for a failed request, also for errors of tornado and jupyter_server."""
    if isinstance(error, ApiError):
        return {"message": error.text, "reason": error.api_reason}
    if status == 403 and not authenticated:
        return {"message": "Log in, or send the server's token.", "reason": "unauthenticated"}
    message = responses.get(status, "Unknown error")
    if isinstance(error, HTTPError):
        if error.log_message:
            message = error.log_message % error.args if error.args else error.log_message.replace("%%", "%")
    elif status >= 500:
        message = "An unexpected error has happened; the Jupyter server's log has the details."
    return {"message": message, "reason": _REASONS.get(status, "internal" if status >= 500 else "invalid")}
