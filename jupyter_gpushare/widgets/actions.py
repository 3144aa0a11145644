"""What can be pressed in a view. One press is one request to the coordinator, on a connection of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as widgets

from ..kernel.client_api import ClientApi
from ..kernel.display import result_messages
from ..kernel.errors import GpuShareError
from . import view_html
from .identity import Identity
from .quota_form import QuotaForm

_HOLD_CHOICES = (("1 minute", "1min"), ("5 minutes", "5min"), ("10 minutes", "10min"), ("as long as allowed", ""))
# The words of the commands of the JupyterLab extension (labextension/src/actions/actionCommands.ts).
_BUTTONS = {
    "release": ("Give Up the GPU Turn", "The rest of the turn, or the hold, goes to others."),
    "evict": ("Move Memory off the GPU", "It comes back with the next turn; a turn now is given up first."),
    "suspend": ("Suspend GPU Use", "Cells wait and the memory leaves the GPU, until you resume."),
    "resume": ("Resume GPU Use", "Take turns again."),
    "hold": ("Hold the GPU", "Keep the GPU between cells, for some minutes."),
    "end": ("No longer", "Hold the GPU no longer."),
}
_INLINE_LAYOUT = {"flex_flow": "row wrap"}


class Actions(widgets.VBox):  # type: ignore[misc]
    """The buttons, what they brought, and the form for the quota.

    Kernels hear of a press when the running cell has ended, if not in a subshell (which ipykernel 7.4 doesn't use for
    widgets that the main shell made). So a line tells of ways that don't wait.
    """

    def __init__(self, identity: Identity) -> None:
        self._api = calls = ClientApi(identity.client, identity.path, lambda: identity.problem)
        self.buttons = {
            name: widgets.Button(description=word, tooltip=tip, disabled=True, layout={"width": "auto"})
            for name, (word, tip) in _BUTTONS.items()
        }
        self.hold_for = widgets.Dropdown(
            description="Hold it for", options=_HOLD_CHOICES, value="5min", layout={"width": "260px"}
        )
        self.form = QuotaForm()
        self.result = widgets.HTML()
        self.hint = widgets.HTML()
        turns = widgets.HBox(
            [self.buttons[name] for name in ("release", "evict", "suspend", "resume")], layout=_INLINE_LAYOUT
        )
        hold = widgets.HBox([self.hold_for, self.buttons["hold"], self.buttons["end"]], layout=_INLINE_LAYOUT)
        quota = widgets.Accordion([self.form], titles=("Quota",), selected_index=None)
        super().__init__([turns, hold, self.result, quota, self.hint])
        does: dict[str, Callable[[], str]] = {
            "release": lambda: result_messages.released(calls.release()),
            "evict": lambda: result_messages.evicted(calls.evict()),
            "suspend": lambda: result_messages.suspended(calls.suspend()),
            "resume": lambda: result_messages.resumed(calls.resume()),
            "hold": lambda: result_messages.hold_changed(calls.hold(self.hold_for.value or None)),
            "end": lambda: result_messages.hold_changed(calls.hold(0)),
        }
        for name, action in does.items():
            self.buttons[name].on_click(self._with_message(action))
        self.form.on_apply(self._with_message(self._change_quota))

    def update_enabled(self, client: Mapping[str, Any] | None) -> None:
        """Offer what can be done with the client of a snapshot; nothing while there is none."""
        offered = {"release", "evict", "suspend", "resume", "hold", "end"} if client else set()
        if client:
            offered -= {"suspend", "hold", "release"} if client["phase"] == "suspended" else {"resume"}
            if client.get("hold_seconds_left") is None:
                offered -= {"end", "release"} if client["phase"] in ("idle", "waiting") else {"end"}
            if not client["resident"]:
                offered -= {"evict"}
            self.form.show_snapshot(client["quota"])
        for name, button in self.buttons.items():
            button.disabled = name not in offered
        self.form.enable(client is not None)
        busy = client is not None and client.get("cells", 0) > 0
        self.hint.value = view_html.muted(_BUSY_HINT.format(client=self._api.client)) if busy else ""

    def _with_message(self, action: Callable[[], str]) -> Callable[..., None]:
        def pressed(_: Any = None) -> None:
            try:
                self.result.value = view_html.message(action())
            except GpuShareError as error:
                self.result.value = view_html.message(str(error), wrong=True)

        return pressed

    def _change_quota(self) -> str:
        wanted = self.form.requested_changes()
        if wanted is None:
            return ""  # the form says what is wrong
        sent, changes = wanted
        if not changes:
            return "Nothing in the form differs from the quota."
        quota = self._api.quota(changes)
        self.form.show_answer(quota, sent)
        return result_messages.quota(quota, changed=True)


_BUSY_HINT = (
    "A cell is running: what is pressed here may not count before it has ended. At once: in JupyterLab's panel, or in "
    "a terminal by jupyter gpushare release | evict | suspend | resume | hold {client}"
)
