"""Buttons and quota form of a view, which send one request for each press, on a connection of its own."""

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
    "release": ("Give Up the GPU Turn", "End the turn and the hold, so that the next client runs."),
    "evict": ("Move Memory off the GPU", "The memory returns with the next turn. A present turn ends first."),
    "suspend": ("Suspend GPU Use", "Cells wait and the memory moves off the GPU until you resume the kernel."),
    "resume": ("Resume GPU Use", "Take turns again."),
    "hold": ("Hold the GPU", "Keep the GPU between cells for some minutes."),
    "end": ("No longer", "End the hold."),
}
_INLINE_LAYOUT = {"flex_flow": "row wrap"}


class Actions(widgets.VBox):  # type: ignore[misc]
    """Buttons, the message about the last result, and the form for the quota.

    A kernel receives a press only after the running cell, except in a subshell.
    ipykernel 7.4 does not use a subshell for widgets of the main shell.
    So a hint names the commands that do not wait for the cell.
    """

    def __init__(self, identity: Identity) -> None:
        self._api = calls = ClientApi(identity.client, identity.path, lambda: identity.problem)
        self.buttons = {
            name: widgets.Button(description=label, tooltip=tooltip, disabled=True, layout={"width": "auto"})
            for name, (label, tooltip) in _BUTTONS.items()
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
        actions: dict[str, Callable[[], str]] = {
            "release": lambda: result_messages.released(calls.release()),
            "evict": lambda: result_messages.evicted(calls.evict()),
            "suspend": lambda: result_messages.suspended(calls.suspend()),
            "resume": lambda: result_messages.resumed(calls.resume()),
            "hold": lambda: result_messages.hold_changed(calls.hold(self.hold_for.value or None)),
            "end": lambda: result_messages.hold_changed(calls.hold(0)),
        }
        for name, action in actions.items():
            self.buttons[name].on_click(self._with_message(action))
        self.form.on_apply(self._with_message(self._change_quota))

    def update_enabled(self, client: Mapping[str, Any] | None) -> None:
        """Enable the buttons that apply to the client of a snapshot, and none without a client."""
        enabled = {"release", "evict", "suspend", "resume", "hold", "end"} if client else set()
        if client:
            enabled -= {"suspend", "hold", "release"} if client["phase"] == "suspended" else {"resume"}
            if client.get("hold_seconds_left") is None:
                enabled -= {"end", "release"} if client["phase"] in ("idle", "waiting") else {"end"}
            if not client["resident"]:
                enabled -= {"evict"}
            self.form.show_snapshot(client["quota"])
        for name, button in self.buttons.items():
            button.disabled = name not in enabled
        self.form.enable(client is not None)
        is_busy = client is not None and client.get("cells", 0) > 0
        self.hint.value = view_html.muted(_BUSY_HINT.format(client=self._api.client)) if is_busy else ""

    def _with_message(self, action: Callable[[], str]) -> Callable[..., None]:
        def pressed(_: Any = None) -> None:
            try:
                self.result.value = view_html.message(action())
            except GpuShareError as error:
                self.result.value = view_html.message(str(error), is_error=True)

        return pressed

    def _change_quota(self) -> str:
        requested = self.form.requested_changes()
        if requested is None:
            return ""  # The form shows the invalid fields.
        sent, changes = requested
        if not changes:
            return "The form equals the quota, so nothing was changed."
        quota = self._api.quota(changes)
        self.form.show_answer(quota, sent)
        return result_messages.quota(quota, changed=True)


_BUSY_HINT = (
    "A cell is running, so the buttons may have no effect before the end of the cell. Use the panel in JupyterLab, or "
    "a terminal, for an immediate effect: jupyter gpushare release | evict | suspend | resume | hold {client}"
)
