"""The view itself: what is shown, what can be pressed, and when it follows the coordinator."""

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

_UNSHARED = "Choose the kernel “Python 3 (shared GPU)”, or another shared one, to take turns on the GPU with others."
_displayed: weakref.WeakSet[GpuShareView] = weakref.WeakSet()
_AWAY = "It is away; kernels take turns by themselves meanwhile, and this view goes on when it is back."


class GpuShareView(widgets.VBox):  # type: ignore[misc]
    """How this kernel shares its GPU, live, with controls for its quota and its turns.

    Show it as the last line of a cell, or put it into a layout of widgets. A thread follows the coordinator while the
    view is on a page, also while a cell runs. `close` ends that; so do closing it from the front end and
    `Widget.close_all`. While no page shows it, not yet or not any more, nothing is followed; shown again it goes on.
    """

    def __init__(self, **options: Any) -> None:
        self._subscription: StatusSubscription | None = None
        self._closed = False
        self._text = ""
        self._cells: dict[str, str] = {}  # that have displayed it, with the requests by which they did
        try:
            self._identity = identity.current_identity()
        except address.BadAddress as error:
            self._identity = identity.Identity("", "", str(error))
        self.state = widgets.HTML()
        self.actions = Actions(self._identity) if self._identity.client else None
        # With a number, and not None, front ends count on how many places a view is shown.
        super().__init__([self.state, *filter(None, [self.actions])], _view_count=0, **options)
        self.comm.on_close(lambda _: self.close())
        self.observe(self._on_view_count, "_view_count")
        self._on_update(StatusUpdate())

    @property
    def following(self) -> bool:
        """Whether a thread follows the coordinator now."""
        return self._subscription is not None and self._subscription.running

    def close(self) -> None:
        """End the thread and its connection, and take the view off all pages. It cannot be shown again."""
        if getattr(self, "_closed", True):  # also before `__init__` came here
            return
        self._closed = True
        self._stop()
        for part in _parts(self):
            part.close()
        super().close()

    def __repr__(self) -> str:
        """What is shown where widgets are not."""
        return f"GpuShareView: {self._text}"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Displayed: a page that counts says so only when the running cell has ended."""
        self._replace()
        self._follow()
        return super()._repr_mimebundle_(**options)

    def _replace(self) -> None:
        """What its cell displayed when it ran before is gone: a page that was loaded anew meanwhile did not say so."""
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
        follower, self._subscription = self._subscription, None
        if follower is not None:
            follower.stop()

    def _on_view_count(self, change: Any) -> None:
        """A page began to show it, or ceased to."""
        if change["new"]:
            self._follow()
        elif change["old"]:
            self._stop()

    def _on_update(self, seen: StatusUpdate) -> None:
        """Called by the follower's thread; front ends are told of what has changed only."""
        client = self._identity.client
        report = Report(seen.status, client, elapsed=monotonic() - seen.at)
        if report.own:
            self._text, html = report.state, view_html.page(report)
        elif not client:
            self._text = "this kernel isn't shared"
            html = view_html.notice("This kernel does not share the GPU.", self._identity.problem or _UNSHARED)
        elif seen.problem:
            self._text = "sharing service away"
            html = view_html.notice("GPU: sharing service away", f"{seen.problem}. {_AWAY}")
        elif seen.status:
            self._text = "not yet known to the coordinator"
            html = view_html.notice("GPU: this kernel is not yet known to the coordinator")
        else:
            self._text = "asking the coordinator"
            html = view_html.notice("GPU: asking the coordinator …")
        if self.state.value != html:
            self.state.value = html
        if self.actions is not None:
            self.actions.update_enabled(report.own)


def _parts(widget: Any) -> Iterator[Any]:
    """All widgets below `widget`, their layouts and styles too: each has a model of its own in the front end."""
    below = (*getattr(widget, "children", ()), getattr(widget, "layout", None), getattr(widget, "style", None))
    for part in below:
        if part is not None:
            yield from _parts(part)
            yield part
