"""View of a kernel's GPU sharing, with its state, its buttons and its subscription."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from time import monotonic
from typing import Any

import ipywidgets as widgets

from ..kernel.display.report import Report
from ..wire import address
from . import identity, view_html
from .actions import Actions
from .subscription import StatusSubscription, StatusUpdate

_UNSHARED = "Choose the kernel “Python 3 (shared GPU)” or another shared kernel to take turns with other clients."
_displayed: weakref.WeakSet[GpuShareView] = weakref.WeakSet()
_UNAVAILABLE = "Kernels take turns by themselves meanwhile, and this view continues when the service is back."


class GpuShareView(widgets.VBox):  # type: ignore[misc]
    """Live view of this kernel's GPU sharing, with controls for the quota and the turns.

    The last line of a cell can display the view, and a layout of widgets can contain it.
    While a page shows the view, also during a cell, a thread follows the coordinator.
    `close`, `Widget.close_all` and a close in the front end stop the thread for good.
    While no page shows the view, no thread runs.
    """

    def __init__(self, **options: Any) -> None:
        self._subscription: StatusSubscription | None = None
        self._closed = False
        self._text = ""
        self._cells: dict[str, str] = {}  # cells that have displayed the view, with their requests
        try:
            self._identity = identity.current_identity()
        except address.BadAddress as error:
            self._identity = identity.Identity("", "", str(error))
        self.state = widgets.HTML()
        self.actions = Actions(self._identity) if self._identity.client else None
        # Front ends count the places that show a view if the count is a number instead of None.
        super().__init__([self.state, *filter(None, [self.actions])], _view_count=0, **options)
        self.comm.on_close(lambda _: self.close())
        self.observe(self._on_view_count, "_view_count")
        self._on_update(StatusUpdate())

    @property
    def following(self) -> bool:
        """True while a thread follows the coordinator."""
        return self._subscription is not None and self._subscription.running

    def close(self) -> None:
        """End the thread and its connection, and remove the view from all pages for good."""
        if getattr(self, "_closed", True):  # The attribute is missing before the end of `__init__`.
            return
        self._closed = True
        self._stop()
        for part in _parts(self):
            part.close()
        super().close()

    def __repr__(self) -> str:
        """Return the text for front ends without widgets."""
        return f"GpuShareView: {self._text}"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Display the view, and start the thread, because a page sends its count only after the running cell."""
        self._replace()
        self._follow()
        return super()._repr_mimebundle_(**options)

    def _replace(self) -> None:
        """Stop the views that an earlier run of this cell has displayed.

        A page that was reloaded in the meantime has not sent the end of these views.
        """
        cell, request = identity.running_cell()
        if not cell:
            return
        for other in list(_displayed):
            if other._cells.get(cell, request) != request:
                del other._cells[cell]
                if not other._cells and other._view_count <= 1:
                    other._stop()
        self._cells[cell] = request
        _displayed.add(self)

    def _follow(self) -> None:
        if self._subscription is None and self._identity.client and not self._closed:
            self._subscription = StatusSubscription(self._identity.path, self._on_update)
            self._subscription.start()

    def _stop(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.stop()

    def _on_view_count(self, change: Any) -> None:
        """Start or stop the thread when pages begin or cease to show the view."""
        if change["new"]:
            self._follow()
        elif change["old"]:
            self._stop()

    def _on_update(self, update: StatusUpdate) -> None:
        """Show an update in the thread of the subscription, and send only changes to front ends."""
        client = self._identity.client
        report = Report(update.status, client, elapsed=monotonic() - update.at)
        if report.own:
            self._text, html = report.state, view_html.page(report)
        elif not client:
            self._text = "this kernel does not share the GPU"
            html = view_html.notice("This kernel does not share the GPU.", self._identity.problem or _UNSHARED)
        elif update.problem:
            self._text = "sharing service unavailable"
            html = view_html.notice("GPU: sharing service unavailable", f"{update.problem}. {_UNAVAILABLE}")
        elif update.status:
            self._text = "not yet known to the coordinator"
            html = view_html.notice("GPU: this kernel is not yet known to the coordinator")
        else:
            self._text = "connecting to the coordinator"
            html = view_html.notice("GPU: connecting to the coordinator …")
        if self.state.value != html:
            self.state.value = html
        if self.actions is not None:
            self.actions.update_enabled(report.own)


def _parts(widget: Any) -> Iterator[Any]:
    """Yield all widgets below `widget` with layouts and styles, each of which has a model in the front end."""
    children = (*getattr(widget, "children", ()), getattr(widget, "layout", None), getattr(widget, "style", None))
    for child in children:
        if child is not None:
            yield from _parts(child)
            yield child
