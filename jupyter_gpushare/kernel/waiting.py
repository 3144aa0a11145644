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

    from .outlook import Notice

MIME_TYPE = "application/vnd.gpushare.wait+json"
LOOK = 1.0  # seconds between two questions
LEAST = 1.0  # seconds of waiting that nobody is told of
REST = 5.0  # seconds after a question that was not answered


class Request:
    """One request that runs, and what is shown under it."""

    def __init__(self, parent: dict[str, Any]) -> None:
        self.parent = parent
        self.began = monotonic()
        self.display = ""  # its id, "" as long as nothing is shown
        self.shown: Notice | None = None
        self.over = False
        self.first_wait: float | None = None  # seconds that the client had waited before this request
        self.waited = 0.0  # seconds, as of `looked`
        self.looked = 0.0
        self.waits = False
        self.stood = self.stands = 0.0  # seconds for which calls stood there, before and now


class Waiting:
    """Watches the requests of one kernel. `begin` and `end` may be called from any thread and never wait."""

    def __init__(self, client: str, outlook: Callable[[], dict[str, Any]], publish: Callable[..., None]) -> None:
        self._client = client
        self._outlook = outlook
        self._publish = publish
        self._open: dict[str, Request] = {}
        self._lock = threading.Lock()  # of what is shown
        self._wake = threading.Event()
        self._asleep = True
        self._thread: threading.Thread | None = None
        self._rest_until = 0.0
        self._over = False
        self._interrupted = False  # the last cell was

    def begin(self, request: str, parent: dict[str, Any]) -> None:
        """A request begins to run; `parent` is its message."""
        content = parent.get("content", {})
        if self._over or not content.get("allow_stdin") or content.get("silent"):
            return
        self._open[request] = Request(parent)
        if self._thread is None:
            self._start()
        elif self._asleep:
            self._wake.set()

    def ran(self, result: Any) -> None:
        """A cell has run, with this result of IPython's; its request ends next."""
        self._interrupted = isinstance(getattr(result, "error_in_exec", None), KeyboardInterrupt)

    def end(self, request: str) -> None:
        """It has ended; what is shown of a wait becomes one line that stays."""
        one = self._open.pop(request, None)
        if one is None:
            return
        with self._lock:
            one.over = True
            self._finish(one, monotonic())

    def forget_in_child(self) -> None:
        """A fork's child is no kernel, and has no thread that watches."""
        self._over = True
        self._open = {}
        self._lock = threading.Lock()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._watch, name="gpushare-waiting", daemon=True)
            self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
            self._thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
        with contextlib.suppress(RuntimeError):  # the process may have no more threads; the cell runs all the same
            self._thread.start()

    def _watch(self) -> None:
        while True:
            self._asleep = True
            if not self._open:
                self._wake.wait()
            self._asleep = False
            self._wake.clear()
            sleep(LOOK)
            # The others are for an answer of another version, which we don't understand: then nothing is said.
            with contextlib.suppress(GpuShareError, KeyError, TypeError, ValueError):
                self._look()

    def _look(self) -> None:
        now = monotonic()
        due = [one for one in list(self._open.values()) if now - one.began >= 0.9 * LOOK]
        if not due or now < self._rest_until:
            return
        self._rest_until = now + REST  # unless an answer comes
        outlook = self._outlook()
        self._rest_until = 0.0
        for one in due:
            with self._lock:
                self._see(one, outlook, now)

    def _see(self, one: Request, outlook: dict[str, Any], now: float) -> None:
        if one.over:
            return
        self._count(one, outlook, now)
        if not one.waits:
            self._finish(one, now)
        elif one.waited > LEAST or one.shown:
            from .outlook import suspended, waiting  # only now: most kernels never wait

            self._show(one, suspended(self._client) if outlook["suspended"] else waiting(outlook, one.waited))

    def _count(self, one: Request, outlook: dict[str, Any], now: float) -> None:
        """How long this request has waited. What the client waited before it is not counted; the coordinator's sum is
        exact, but without the time for which a call stood there because the client is suspended."""
        in_all, this_wait = float(outlook["wait_seconds"]), min(float(outlook["waited_seconds"]), now - one.began)
        one.waits = bool(outlook["waiting"])
        stands = one.waits and bool(outlook["suspended"])
        if one.first_wait is None:
            one.first_wait = in_all - (this_wait if one.waits and not stands else 0.0)
        if stands:
            one.stands = this_wait
        else:
            one.stood, one.stands = one.stood + one.stands, 0.0
        one.waited, one.looked = max(0.0, in_all - one.first_wait) + one.stood + one.stands, now

    def _finish(self, one: Request, now: float) -> None:
        if one.shown is None:
            return
        from .outlook import gave_up, waited

        seconds = one.waited + (min(now - one.looked, LOOK) if one.waits else 0.0)
        self._show(one, (gave_up if one.over and one.waits and self._interrupted else waited)(seconds))

    def _show(self, one: Request, notice: Notice) -> None:
        if notice == one.shown:
            return
        update, one.shown = bool(one.display), notice
        one.display = one.display or f"gpushare-{uuid.uuid4().hex}"
        self._publish(one.parent, one.display, notice, update)


def publisher(kernel: Any) -> Callable[..., None]:
    """How a notice gets under its cell, in ipykernel; its output socket may be used from any thread."""

    def publish(parent: dict[str, Any], display: str, notice: Notice, update: bool) -> None:
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
