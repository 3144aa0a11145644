"""Form for a client's quota, with the texts of its fields, their check and the resulting changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import ipywidgets as widgets

from .. import units
from ..settings import quota
from . import view_html

LATE_EDIT_SECONDS = 1.0
FIELDS = ("share", "limit", "memory", "resident")
HINT = (
    "share (guaranteed) and limit (maximum) are fractions of the GPU's time, such as 0.5 or 50%. memory (to allocate) "
    "and resident (to keep on the GPU while other clients wait, and in mode unified in turns too) are sizes such as "
    "8GiB; an empty field removes the bound. Clients of class offline run after online clients."
)
_LAYOUT = {"width": "260px"}


def initial_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the form's fields for a quota."""
    texts = {key: f"{values[key]:g}" for key in ("share", "limit")}
    texts |= {key: "" if values[key] is None else units.size_word(values[key]) for key in ("memory", "resident")}
    return {**texts, "service": values["service"]}


def problems(texts: Mapping[str, str]) -> list[str]:
    """Return a message for each invalid field; the coordinator may refuse other values as well."""
    found = []
    fields: dict[str, Any] = {}
    for key, text in texts.items():
        try:
            fields |= quota.read({key: text.strip() or None}, parts=("memory", "resident"))
        except ValueError as error:
            found.append(str(error))
    if not found and fields["share"] > fields["limit"]:
        found.append(f"share: {texts['share']} is above the limit of {texts['limit']}")
    return found


def changes(texts: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changed fields for the coordinator, with None for an empty size, which removes the bound."""
    return {key: texts[key].strip() or None for key in texts if texts[key].strip() != before[key].strip()}


class QuotaForm(widgets.VBox):  # type: ignore[misc]
    """Form with a field for each part of a quota, which checks the fields at each edit. `apply` is the button.

    The kernel may receive a press before the edit that preceded it.
    One reason is that front ends delay an edit while an earlier edit is on its way.
    Another reason is that ipykernel 7 receives edits and presses in different threads.
    So an edit within `LATE_EDIT_SECONDS` after a press counts as an edit before the press.
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {
            key: widgets.Text(description=key, continuous_update=False, layout=_LAYOUT) for key in FIELDS
        }
        self.fields["memory"].placeholder = "all of the device's"
        self.fields["resident"].placeholder = "as much as fits"
        self.fields["service"] = widgets.Dropdown(description="class", options=["online", "offline"], layout=_LAYOUT)
        self.apply = widgets.Button(
            description="Change GPU Quota", tooltip="Share, limit, memory and class of the kernel."
        )
        self._problems = widgets.HTML()
        self._before: dict[str, str] = {}
        self._last_snapshot: dict[str, str] = {}
        self._lock = threading.RLock()  # because presses, edits and snapshots come in different threads
        self._filling = False
        self._pressed = -LATE_EDIT_SECONDS
        self._send: Callable[[], object] = lambda: None
        super().__init__([*self.fields.values(), widgets.HTML(view_html.muted(HINT)), self.apply, self._problems])
        for field in self.fields.values():
            field.observe(self._on_edit, "value")
        self.apply.on_click(self._on_press)
        self.enable(False)  # until the first snapshot, which would replace an edit

    def on_apply(self, send: Callable[[], object]) -> None:
        """Call `send` at each press of the button, and at each late edit."""
        self._send = send

    @property
    def field_texts(self) -> dict[str, str]:
        return {key: field.value for key, field in self.fields.items()}

    def show_snapshot(self, quota: Mapping[str, Any]) -> None:
        """Show the quota of a snapshot, and keep the user's edits.

        A quota that equals the quota of the last snapshot has no effect, because it may be older than the answer in
        `show_answer`.
        """
        with self._lock:
            if (new := initial_texts(quota)) != self._last_snapshot:
                self._last_snapshot = new
                self._fill(new, self._before)

    def show_answer(self, quota: Mapping[str, Any], sent: Mapping[str, str]) -> None:
        """Show the quota that resulted from the texts `sent`, and keep the edits since then."""
        with self._lock:
            self._fill(initial_texts(quota), sent)

    def requested_changes(self) -> tuple[dict[str, str], dict[str, str | None]] | None:
        """Return the texts and the changes, or None with a message in the form for an invalid field."""
        with self._lock:
            texts = self.field_texts
            return None if self._check(texts) else (texts, changes(texts, self._before))

    def enable(self, enabled: bool) -> None:
        for control in (*self.fields.values(), self.apply):
            control.disabled = not enabled

    def _fill(self, new: dict[str, str], replaced: Mapping[str, str]) -> None:
        now = self.field_texts
        self._before = new
        self._filling = True
        try:
            for key, field in self.fields.items():
                if now[key] == replaced.get(key, now[key]) and now[key] != new[key]:
                    field.value = new[key]
        finally:
            self._filling = False

    def _on_press(self, _: Any) -> None:
        with self._lock:
            self._pressed = monotonic()
            self._send()

    def _on_edit(self, _: Any) -> None:
        with self._lock:
            is_late = not self._filling and monotonic() - self._pressed < LATE_EDIT_SECONDS
            if is_late and (requested := self.requested_changes()) and requested[1]:
                self._send()
            elif not is_late:
                self._check(self.field_texts)

    def _check(self, texts: Mapping[str, str]) -> list[str]:
        found = problems(texts)
        self._problems.value = view_html.message("\n".join(found), is_error=True)
        return found
