"""Display, under a cell that waits for the GPU, of the wait's length and cause.

A thread asks the coordinator once a second while a request runs for longer than a second, and publishes one display
that it updates in place. The display has a MIME type of its own, which lets a front end (JupyterLab with the extension)
replace it, and a text for every other front end. It goes straight to the front end, with the request as its parent, so
that `sys.stdout` and `%%capture` in the cell are not disturbed. Requests without `allow_stdin` come from programs
(nbclient, nbconvert, papermill), whose results must be the same with and without a wait; they get no display.
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
POLL_SECONDS = 1.0  # seconds between two questions
MIN_SHOWN_WAIT_SECONDS = 1.0  # seconds of waiting that nobody is told of
RETRY_SECONDS = 5.0  # seconds after a question that was not answered


class RunningRequest:
    """One request that runs, and what is shown under it."""

    def __init__(self, parent: dict[str, Any]) -> None:
        self.parent = parent
        self.started_at = monotonic()
        self.display = ""  # its id, "" as long as nothing is shown
        self.shown: WaitMessage | None = None
        self.has_ended = False
        self.first_wait: float | None = None  # seconds that the client had waited before this request
        self.waited = 0.0  # seconds, as of `looked`
        self.polled_at = 0.0
        self.is_waiting = False
        self.suspended_before = self.suspended_now = 0.0  # seconds for which calls stood there, before and now


class WaitDisplay:
    """Watches the requests of one kernel. `begin` and `end` may be called from any thread and never wait."""

    def __init__(self, client: str, fetch_status: Callable[[], dict[str, Any]], publish: Callable[..., None]) -> None:
        self._client = client
        self._fetch_status = fetch_status
        self._publish = publish
        self._running: dict[str, RunningRequest] = {}
        self._lock = threading.Lock()  # of what is shown
        self._wake = threading.Event()
        self._is_idle = True
        self._thread: threading.Thread | None = None
        self._retry_at = 0.0
        self._closed = False
        self._interrupted = False  # the last cell was

    def begin(self, request: str, parent: dict[str, Any]) -> None:
        """A request begins to run; `parent` is its message."""
        content = parent.get("content", {})
        if self._closed or not content.get("allow_stdin") or content.get("silent"):
            return
        self._running[request] = RunningRequest(parent)
        if self._thread is None:
            self._start()
        elif self._is_idle:
            self._wake.set()

    def on_cell_ran(self, result: Any) -> None:
        """A cell has run, with this result of IPython's; its request ends next."""
        self._interrupted = isinstance(getattr(result, "error_in_exec", None), KeyboardInterrupt)

    def end(self, request: str) -> None:
        """It has ended; what is shown of a wait becomes one line that stays."""
        one = self._running.pop(request, None)
        if one is None:
            return
        with self._lock:
            one.has_ended = True
            self._finish(one, monotonic())

    def reset_in_child(self) -> None:
        """A fork's child is no kernel, and has no thread that watches."""
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
        with contextlib.suppress(RuntimeError):  # the process may have no more threads; the cell runs all the same
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._is_idle = True
            if not self._running:
                self._wake.wait()
            self._is_idle = False
            self._wake.clear()
            sleep(POLL_SECONDS)
            # The others are for an answer of another version, which we don't understand: then nothing is said.
            with contextlib.suppress(GpuShareError, KeyError, TypeError, ValueError):
                self._poll()

    def _poll(self) -> None:
        now = monotonic()
        due = [one for one in list(self._running.values()) if now - one.started_at >= 0.9 * POLL_SECONDS]
        if not due or now < self._retry_at:
            return
        self._retry_at = now + RETRY_SECONDS  # unless an answer comes
        outlook = self._fetch_status()
        self._retry_at = 0.0
        for one in due:
            with self._lock:
                self._on_status(one, outlook, now)

    def _on_status(self, one: RunningRequest, status: dict[str, Any], now: float) -> None:
        if one.has_ended:
            return
        self._update_wait(one, status, now)
        if not one.is_waiting:
            self._finish(one, now)
        elif one.waited > MIN_SHOWN_WAIT_SECONDS or one.shown:
            from .display.wait_messages import wait_in_progress, wait_suspended  # only now: most kernels never wait

            self._show(
                one, wait_suspended(self._client) if status["suspended"] else wait_in_progress(status, one.waited)
            )

    def _update_wait(self, one: RunningRequest, status: dict[str, Any], now: float) -> None:
        """How long this request has waited. What the client waited before it is not counted; the coordinator's sum is
        exact, but without the time for which a call stood there because the client is suspended."""
        in_all, this_wait = float(status["wait_seconds"]), min(float(status["waited_seconds"]), now - one.started_at)
        one.is_waiting = bool(status["waiting"])
        stands = one.is_waiting and bool(status["suspended"])
        if one.first_wait is None:
            one.first_wait = in_all - (this_wait if one.is_waiting and not stands else 0.0)
        if stands:
            one.suspended_now = this_wait
        else:
            one.suspended_before, one.suspended_now = one.suspended_before + one.suspended_now, 0.0
        one.waited, one.polled_at = max(0.0, in_all - one.first_wait) + one.suspended_before + one.suspended_now, now

    def _finish(self, one: RunningRequest, now: float) -> None:
        if one.shown is None:
            return
        from .display.wait_messages import wait_abandoned, wait_finished

        seconds = one.waited + (min(now - one.polled_at, POLL_SECONDS) if one.is_waiting else 0.0)
        self._show(
            one, (wait_abandoned if one.has_ended and one.is_waiting and self._interrupted else wait_finished)(seconds)
        )

    def _show(self, one: RunningRequest, notice: WaitMessage) -> None:
        if notice == one.shown:
            return
        update, one.shown = bool(one.display), notice
        one.display = one.display or f"gpushare-{uuid.uuid4().hex}"
        self._publish(one.parent, one.display, notice, update)


def publisher(kernel: Any) -> Callable[..., None]:
    """How a notice gets under its cell, in ipykernel; its output socket may be used from any thread."""

    def publish(parent: dict[str, Any], display: str, notice: WaitMessage, update: bool) -> None:
        content = {
            "data": {MIME_TYPE: notice.data, "text/html": notice.html, "text/plain": notice.text},
            "metadata": {},
            "transient": {"display_id": display},
        }
        kind = "update_display_data" if update else "display_data"
        # A kernel that shuts down may have no socket any more; a cell is never disturbed by this.
        with contextlib.suppress(Exception):
            kernel.session.send(kernel.iopub_socket, kind, content, parent=parent, ident=kind.encode())

    return publish
