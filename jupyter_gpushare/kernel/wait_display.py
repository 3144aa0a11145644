"""Wait display: the length and cause of a wait, under the cell that waits for the GPU.

While a request runs, a thread polls the coordinator about once a second.
The thread publishes at most one display per request, and updates this display in place.
JupyterLab with the lab extension drops the display, which has a MIME type of its own, and draws the wait itself.
Other front ends show the text of the display.
The display goes directly to the front end, with the request as parent, so `sys.stdout` and `%%capture` do not get it.
Requests without `allow_stdin` come from programs (nbclient, nbconvert, papermill).
Such requests, and silent requests, get no display, because the results of programs must not depend on waits.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from .errors import GpuShareError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .display.wait_messages import WaitMessage

MIME_TYPE = "application/vnd.gpushare.wait+json"
POLL_SECONDS = 1.0
MIN_SHOWN_WAIT_SECONDS = 1.0  # a shorter wait gets no display
RETRY_SECONDS = 5.0  # after a poll without an answer


class RunningRequest:
    """Request that runs, with the display under its cell."""

    def __init__(self, parent: dict[str, Any]) -> None:
        self.parent = parent
        self.started_at = monotonic()
        self.display = ""  # the id of the display, "" before there is one
        self.shown: WaitMessage | None = None
        self.has_ended = False
        self.first_wait: float | None = None  # seconds that the client had waited before this request
        self.waited = 0.0  # seconds, at `polled_at`
        self.polled_at = 0.0
        self.is_waiting = False
        self.is_given_up = False  # the last wait has ended without a turn
        self.turn_count: int | None = None  # of the client, at the last poll during a wait
        # Seconds for which suspensions have blocked calls of the request: earlier suspensions, and the present one.
        self.suspended_before = self.suspended_now = 0.0


class WaitDisplay:
    """Display of the waits of one kernel. Any thread may call `begin` and `end`, which never wait."""

    def __init__(self, client: str, fetch_status: Callable[[], dict[str, Any]], publish: Callable[..., None]) -> None:
        self._client = client
        self._fetch_status = fetch_status
        self._publish = publish
        self._running: dict[str, RunningRequest] = {}
        self._lock = threading.Lock()  # protects the displays
        self._wake = threading.Event()
        self._is_idle = True
        self._thread: threading.Thread | None = None
        self._retry_at = 0.0
        self._closed = False
        self._interrupted = False  # an interrupt has ended the last cell

    def begin(self, request: str, parent: dict[str, Any]) -> None:
        """Begin to watch a request that starts to run; `parent` is its message."""
        content = parent.get("content", {})
        if self._closed or not content.get("allow_stdin") or content.get("silent"):
            return
        self._running[request] = RunningRequest(parent)
        if self._thread is None:
            self._start()
        elif self._is_idle:
            self._wake.set()

    def on_cell_ran(self, result: Any) -> None:
        """Record the result of a cell in IPython, just before its request ends."""
        self._interrupted = isinstance(getattr(result, "error_in_exec", None), KeyboardInterrupt)

    def end(self, request: str) -> None:
        """End a request, and replace its wait by one line that remains."""
        one = self._running.pop(request, None)
        if one is None:
            return
        with self._lock:
            one.has_ended = True
            self._finish(one, monotonic())

    def reset_in_child(self) -> None:
        """Stop in the child of a fork, because the child is no kernel and lacks the thread."""
        self._closed = True
        self._running = {}
        self._lock = threading.Lock()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="gpushare-waiting", daemon=True)
            self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
            self._thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
        # The process may have reached its limit of threads; the cell must run without a display then.
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._is_idle = True
            if not self._running:
                self._wake.wait()
            self._is_idle = False
            self._wake.clear()
            sleep(POLL_SECONDS)
            # KeyError, TypeError and ValueError come from the answer of another version, which gives no display.
            with contextlib.suppress(GpuShareError, KeyError, TypeError, ValueError):
                self._poll()

    def _poll(self) -> None:
        now = monotonic()
        due = [one for one in list(self._running.values()) if now - one.started_at >= 0.9 * POLL_SECONDS]
        if not due or now < self._retry_at:
            return
        self._retry_at = now + RETRY_SECONDS  # unless an answer comes
        status = self._fetch_status()
        self._retry_at = 0.0
        for one in due:
            with self._lock:
                self._on_status(one, status, now)

    def _on_status(self, one: RunningRequest, status: dict[str, Any], now: float) -> None:
        if one.has_ended:
            return
        self._update_wait(one, status, now)
        if not one.is_waiting:
            self._finish(one, now)
        elif one.waited > MIN_SHOWN_WAIT_SECONDS or one.shown:
            # The import is here because most kernels never wait.
            from .display.wait_messages import wait_in_progress, wait_suspended

            self._show(
                one, wait_suspended(self._client) if status["suspended"] else wait_in_progress(status, one.waited)
            )

    def _update_wait(self, one: RunningRequest, status: dict[str, Any], now: float) -> None:
        """Compute the wait of this request, without the client's earlier waits.

        The coordinator's sum of waits is exact, but lacks the time for which a suspension has blocked a call.
        """
        all_waits, this_wait = float(status["wait_seconds"]), min(float(status["waited_seconds"]), now - one.started_at)
        one.is_waiting = bool(status["waiting"])
        is_blocked = one.is_waiting and bool(status["suspended"])
        if one.is_waiting:  # a turn that goes on may get a further device, and counts as one turn
            one.turn_count = None if status.get("has_turn") else status.get("turn_count")
        one.is_given_up = one.turn_count is not None and not (
            one.is_waiting or status["has_turn"] or status["turn_count"] != one.turn_count
        )
        if one.first_wait is None:
            one.first_wait = all_waits - (this_wait if one.is_waiting and not is_blocked else 0.0)
        if is_blocked:
            one.suspended_now = this_wait
        else:
            one.suspended_before, one.suspended_now = one.suspended_before + one.suspended_now, 0.0
        one.waited = max(0.0, all_waits - one.first_wait) + one.suspended_before + one.suspended_now
        one.polled_at = now

    def _finish(self, one: RunningRequest, now: float) -> None:
        if one.shown is None:
            return
        from .display.wait_messages import wait_abandoned, wait_finished

        seconds = one.waited + (min(now - one.polled_at, POLL_SECONDS) if one.is_waiting else 0.0)
        is_abandoned = one.has_ended and self._interrupted and (one.is_waiting or one.is_given_up)
        self._show(one, (wait_abandoned if is_abandoned else wait_finished)(seconds))

    def _show(self, one: RunningRequest, message: WaitMessage) -> None:
        if message == one.shown:
            return
        is_update, one.shown = bool(one.display), message
        one.display = one.display or f"gpushare-{uuid.uuid4().hex}"
        self._publish(one.parent, one.display, message, is_update)


def publisher(kernel: Any) -> Callable[..., None]:
    """Return a function that displays a message under its cell; any thread may use ipykernel's output socket."""

    def publish(parent: dict[str, Any], display: str, message: WaitMessage, is_update: bool) -> None:
        content = {
            "data": {MIME_TYPE: message.data, "text/html": message.html, "text/plain": message.text},
            "metadata": {},
            "transient": {"display_id": display},
        }
        kind = "update_display_data" if is_update else "display_data"
        # A kernel that shuts down may have closed the socket, and the display must not disturb a cell.
        with contextlib.suppress(Exception):
            kernel.session.send(kernel.iopub_socket, kind, content, parent=parent, ident=kind.encode())

    return publish
