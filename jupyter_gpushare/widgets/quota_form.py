"""The form for a client's quota: what it holds, what of it is wrong, and what of it is to change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import ipywidgets as widgets

from .. import units
from ..settings import quota
from . import view_html

LATE_EDIT_SECONDS = 1.0  # seconds
FIELDS = ("share", "limit", "memory", "resident")
HINT = (
    "share (guaranteed) and limit (at most): parts of the GPU's time, 0.5 or 50%. memory (to allocate) and resident "
    "(to stay on the GPU while others wait): sizes, 8GiB; empty: all of the device. class offline: others go first."
)
_LAYOUT = {"width": "260px"}


def initial_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """A quota as the texts of the form's fields."""
    texts = {key: f"{values[key]:g}" for key in ("share", "limit")}
    texts |= {key: "" if values[key] is None else units.size_word(values[key]) for key in ("memory", "resident")}
    return {**texts, "service": values["service"]}


def problems(texts: Mapping[str, str]) -> list[str]:
    """A sentence on each field that cannot be; the coordinator has the last word."""
    found = []
    fields: dict[str, Any] = {}
    for key, written in texts.items():
        try:
            fields |= quota.read({key: written.strip() or None}, parts=("memory", "resident"))
        except ValueError as error:
            found.append(str(error))
    if not found and fields["share"] > fields["limit"]:
        found.append(f"share: {texts['share']} is above the limit of {texts['limit']}")
    return found


def changes(texts: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str | None]:
    """What differs, as the coordinator reads it: an empty size lifts the bound."""
    return {key: texts[key].strip() or None for key in texts if texts[key].strip() != before[key].strip()}


class QuotaForm(widgets.VBox):  # type: ignore[misc]
    """Fields for each word of a quota, checked as they are filled in. `apply` is the button.

    Kernels may hear of the button before they hear of the field that was left for it: front ends keep a field's change
    back while an earlier one is under way, and ipykernel 7 hears of fields and buttons in different threads. So what
    is heard of a field within `LATE` seconds after a press was there when it was pressed.
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
        self._lock = threading.RLock()  # presses, edits and the coordinator's news come in threads of their own
        self._filling = False
        self._pressed = -LATE_EDIT_SECONDS
        self._send: Callable[[], object] = lambda: None
        super().__init__([*self.fields.values(), widgets.HTML(view_html.muted(HINT)), self.apply, self._problems])
        for field in self.fields.values():
            field.observe(self._on_edit, "value")
        self.apply.on_click(self._on_press)

    def on_apply(self, send: Callable[[], object]) -> None:
        """Call `send` when the button is pressed, and again for what was left for it and is heard of later."""
        self._send = send

    @property
    def field_texts(self) -> dict[str, str]:
        return {key: field.value for key, field in self.fields.items()}

    def show_snapshot(self, quota: Mapping[str, Any]) -> None:
        """Show a snapshot's quota; what the user has edited stays.

        The same as in the last snapshot says nothing: it may be older than what `answer` was given.
        """
        with self._lock:
            if (new := initial_texts(quota)) != self._last_snapshot:
                self._last_snapshot = new
                self._fill(new, self._before)

    def show_answer(self, quota: Mapping[str, Any], sent: Mapping[str, str]) -> None:
        """Show the quota that became of the texts `sent`; what has been edited since stays."""
        with self._lock:
            self._fill(initial_texts(quota), sent)

    def requested_changes(self) -> tuple[dict[str, str], dict[str, str | None]] | None:
        """The texts, and what is to change; None if something is wrong, which the form then says."""
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
            late = not self._filling and monotonic() - self._pressed < LATE_EDIT_SECONDS
            if late and (wanted := self.requested_changes()) and wanted[1]:
                self._send()
            elif not late:
                self._check(self.field_texts)

    def _check(self, texts: Mapping[str, str]) -> list[str]:
        found = problems(texts)
        self._problems.value = view_html.message("\n".join(found), wrong=True)
        return found
