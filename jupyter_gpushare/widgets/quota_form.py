"""The form for a client's quota: what it holds, what of it is wrong, and what of it is to change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from ..wire import text
from . import markup

FIELDS = ("share", "limit", "memory", "resident")
HINT = (
    "share (guaranteed) and limit (at most): parts of the GPU's time, 0.5 or 50%. memory (to allocate) and resident "
    "(to stay on the GPU while others wait): sizes, 8GiB; empty: unlimited. class offline: others go first."
)
_LAYOUT = {"width": "260px"}


def filled(quota: Mapping[str, Any]) -> dict[str, str]:
    """A quota as the texts of the form's fields."""
    texts = {key: f"{quota[key]:g}" for key in ("share", "limit")}
    texts |= {key: "" if quota[key] is None else _exact(quota[key]) for key in ("memory", "resident")}
    return {**texts, "service": quota["service"]}


def problems(texts: Mapping[str, str]) -> list[str]:
    """A sentence on each field that cannot be; the coordinator has the last word."""
    found = []
    fractions = {}
    for key, least in (("share", 0.0), ("limit", 0.001)):
        try:
            fractions[key] = text.parse_fraction(texts[key])
            if not least <= fractions[key] <= 1:
                found.append(f"{key}: {texts[key]} is out of range: allowed is a fraction from {least:g} to 1")
        except ValueError as error:
            found.append(f"{key}: {error}")
    if not found and fractions["share"] > fractions["limit"]:
        found.append(f"share: {texts['share']} is above the limit of {texts['limit']}")
    for key in ("memory", "resident"):
        if not texts[key].strip():
            continue
        try:
            if not text.is_fraction(texts[key]) and text.parse_size(texts[key]) <= 0:
                found.append(f"{key}: {texts[key]} is out of range: allowed is a size above 0, for example 8GiB")
        except ValueError as error:
            found.append(f"{key}: {error}")
    return found


def changes(texts: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str | None]:
    """What differs, as the coordinator reads it: an empty size lifts the bound."""
    return {key: texts[key].strip() or None for key in texts if texts[key].strip() != before[key].strip()}


def _exact(size: int) -> str:
    """1073741824 -> "1GiB"; bytes where that is not exact."""
    short = text.format_size(size).replace(" ", "")
    return short if text.parse_size(short) == size else str(size)


class QuotaForm(widgets.VBox):  # type: ignore[misc]
    """Fields for each word of a quota, checked as they are filled in. `apply` is the button."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {
            key: widgets.Text(description=key, continuous_update=False, layout=_LAYOUT) for key in FIELDS
        }
        for key in ("memory", "resident"):
            self.fields[key].placeholder = "unlimited"
        self.fields["service"] = widgets.Dropdown(description="class", options=["online", "offline"], layout=_LAYOUT)
        self.apply = widgets.Button(
            description="Change GPU Quota", tooltip="Share, limit, memory and class of the kernel."
        )
        self._complaint = widgets.HTML()
        self._before: dict[str, str] = {}
        super().__init__([*self.fields.values(), widgets.HTML(markup.faint(HINT)), self.apply, self._complaint])
        for field in self.fields.values():
            field.observe(self._check, "value")

    @property
    def texts(self) -> dict[str, str]:
        return {key: field.value for key, field in self.fields.items()}

    def fill(self, quota: Mapping[str, Any], keep_edited: bool = True) -> None:
        """Show a quota; what the user has edited and not sent stays, if `keep_edited`."""
        new, old, now = filled(quota), self._before, self.texts
        if new == old and keep_edited:
            return
        self._before = new
        for key, field in self.fields.items():
            if not (keep_edited and old and now[key] != old[key]) and field.value != new[key]:
                field.value = new[key]

    def wanted(self) -> dict[str, str | None] | None:
        """What is to change; None if something is wrong, which the form then says."""
        return None if self._check() else changes(self.texts, self._before)

    def enable(self, enabled: bool) -> None:
        for control in (*self.fields.values(), self.apply):
            control.disabled = not enabled

    def _check(self, _: Any = None) -> list[str]:
        found = problems(self.texts)
        self._complaint.value = markup.message("\n".join(found), wrong=True)
        return found
