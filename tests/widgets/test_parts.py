"""Tests of the parts of a view without a kernel: the form, the updates and the end of the thread."""

from __future__ import annotations

import gc
import re
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.widgets import GpuShareView, quota_form, subscription, view_html
from jupyter_gpushare.wire import messages

QUOTA = {"share": 0.25, "limit": 1.0, "memory": 8 << 30, "resident": None, "service": "online"}


def test_form_reports_invalid_values() -> None:
    texts = quota_form.initial_texts(QUOTA)
    assert texts == {"share": "0.25", "limit": "1", "memory": "8GiB", "resident": "", "service": "online"}
    assert quota_form.problems(texts) == []
    (problem,) = quota_form.problems(texts | {"limit": "0.1"})
    assert "share: 0.25 is above the limit of 0.1" in problem
    wrong = quota_form.problems(texts | {"share": "half", "resident": "8 apples"})
    assert ["not a fraction" in wrong[0], "not a size" in wrong[1]] == [True, True]


def test_a_form_changes_only_what_was_edited() -> None:
    form = quota_form.QuotaForm()
    form.show_snapshot(QUOTA)
    assert form.requested_changes() == (form.field_texts, {})
    form.fields["share"].value = "50%"
    form.fields["memory"].value = " "
    form.show_snapshot(QUOTA | {"limit": 0.75, "memory": 1000})  # another user's change
    sent, changes = form.requested_changes() or ({}, {})
    assert changes == {"share": "50%", "memory": None}
    assert form.field_texts["limit"] == "0.75"
    form.fields["resident"].value = "1GiB"  # a later edit
    form.show_answer(QUOTA | {"share": 0.5, "limit": 0.75, "memory": None}, sent)
    assert form.requested_changes() == (form.field_texts, {"resident": "1GiB"})
    assert form.field_texts == {"share": "0.5", "limit": "0.75", "memory": "", "resident": "1GiB", "service": "online"}


def test_field_change_after_the_button_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(quota_form, "monotonic", lambda: now[0])
    sent: list[Any] = []
    form = quota_form.QuotaForm()

    def send() -> None:
        requested = form.requested_changes()
        sent.append(requested and requested[1])
        if requested and requested[1]:
            form.show_answer(QUOTA | {"share": float(requested[0]["share"])}, requested[0])

    form.on_apply(send)
    form.show_snapshot(QUOTA)
    form.fields["share"].value = "3"
    assert sent == []
    form.apply.click()
    now[0] += quota_form.LATE_EDIT_SECONDS / 2
    form.fields["share"].value = "0.3"  # an edit that the press has ended
    assert sent == [None, {"share": "0.3"}]
    form.fields["share"].value = "0.3"
    assert len(sent) == 2
    now[0] += quota_form.LATE_EDIT_SECONDS
    form.fields["share"].value = "0.5"
    form.show_snapshot(QUOTA | {"share": 0.3})
    assert len(sent) == 2 and form.field_texts["share"] == "0.5"


def test_a_snapshot_from_before_a_change_undoes_nothing() -> None:
    form = quota_form.QuotaForm()
    form.show_snapshot(QUOTA)
    form.fields["share"].value = "0.5"
    form.show_answer(QUOTA | {"share": 0.5}, form.field_texts)
    form.show_snapshot(QUOTA)
    assert form.requested_changes() == (form.field_texts, {}) and form.field_texts["share"] == "0.5"
    form.show_snapshot(QUOTA | {"share": 0.5})
    form.show_snapshot(QUOTA)  # another user's change back
    assert form.requested_changes() == (form.field_texts, {}) and form.field_texts["share"] == "0.25"


@pytest.fixture
def view(coordinator: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any) -> Any:
    """Create the view of a client without a program, so that only the test causes changes.

    The first measurement of the device precedes the view, because no snapshot is sent for a measurement.
    """
    monkeypatch.setenv("GPUSHARE_CLIENT", "a")
    with_quota = messages.Register(client="a", token="t", label="a.ipynb", quota="share=0.5")
    coordinator.request(with_quota)
    wait_until(lambda: coordinator.request(messages.Status())["devices"][0]["utilisation"] is not None)
    view = GpuShareView()
    view._view_count = 1  # as a page sends that shows the view
    yield view
    view.close()


def test_front_ends_get_changes_only(
    view: Any, coordinator: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    """The number of the thread's updates has no effect."""
    monkeypatch.setattr(subscription, "CLOCK_SECONDS", 0.01)
    wait_until(lambda: "share 0.5" in view.state.value)
    changes: list[str] = []
    updates: list[int] = []
    view.state.observe(lambda change: changes.append(change["new"]), "value")
    monkeypatch.setattr(view_html, "page", lambda report, _page=view_html.page: (updates.append(1), _page(report))[1])
    wait_until(lambda: len(updates) > 50)
    assert changes == []
    coordinator.request(messages.SetQuota(client="a", changes={"share": 0.125}))
    wait_until(lambda: changes)
    wait_until(lambda: len(updates) > 100)
    assert len(changes) == 1 and "share 0.125" in changes[0]


def test_many_changes_are_shown_twice_a_second_at_most(view: Any, coordinator: Any, wait_until: Any) -> None:
    wait_until(lambda: "share 0.5" in view.state.value)
    changes: list[str] = []
    view.state.observe(lambda change: changes.append(change["new"]), "value")
    start = time.monotonic()
    for thousandth in range(1, 400):
        coordinator.request(messages.SetQuota(client="a", changes={"share": thousandth / 1000}))
    wait_until(lambda: "share 0.399" in view.state.value)
    assert len(changes) <= 3 + 2 * (time.monotonic() - start)


def test_cell_replaces_the_view_of_its_earlier_run(view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is also replaced if a reloaded page has not sent the end of the earlier view."""
    running = ["one", "request 1"]
    monkeypatch.setattr("jupyter_gpushare.widgets.identity.running_cell", lambda: tuple(running))
    later = GpuShareView()
    for shown in (view, later):
        shown._repr_mimebundle_()
    assert view.following and later.following, "one run has displayed both"
    running[:] = "two", "request 2"
    later._repr_mimebundle_()
    running[:] = "one", "request 3"
    again = GpuShareView()
    again._repr_mimebundle_()
    assert again.following and later.following, "the other cell still displays the view"
    assert not view.following
    view._repr_mimebundle_()
    assert view.following and again.following
    for one in (later, again):
        one.close()


class Receiver:
    """Object with a method for updates."""

    last = subscription.StatusUpdate()

    def show(self, update: subscription.StatusUpdate) -> None:
        self.last = update


def test_thread_ends_with_its_last_view(no_coordinator: str, monkeypatch: pytest.MonkeyPatch, wait_until: Any) -> None:
    monkeypatch.setattr(subscription, "CLOCK_SECONDS", 0.05)
    receivers = [Receiver()]
    subscribed = subscription.StatusSubscription(no_coordinator, receivers[0].show)
    subscribed.start()
    assert "no coordinator answers" in wait_until(lambda: receivers[0].last.problem)
    assert subscribed.running
    receivers.clear()
    gc.collect()
    wait_until(lambda: not subscribed.running)


def test_a_subscription_that_is_stopped_at_once_ends(no_coordinator: str) -> None:
    receiver = Receiver()
    for _ in range(50):
        subscribed = subscription.StatusSubscription(no_coordinator, receiver.show)
        subscribed.start()
        subscribed.stop()
        assert not subscribed.running


def test_invalid_address_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_CLIENT", "a")
    monkeypatch.setenv("GPUSHARE_SOCKET", "here")
    view = GpuShareView()
    assert "not an absolute path" in view.state.value and not view.following
    view.close()


def test_buttons_have_the_words_of_the_jupyterlab_extension(
    no_coordinator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_CLIENT", "a")
    sources = Path(__file__).resolve().parents[2] / "labextension" / "src"
    commands = re.findall(r"label: trans\.__\('(.+?)…?'\)", (sources / "actions/actionCommands.ts").read_text())
    form = "".join((sources / path).read_text() for path in ("actions/formDialog.tsx", "actions/formSchemas.ts"))
    dialog = re.findall(r"(?:label|title): trans\.__\('(.+?)'\)", form)
    view = GpuShareView()
    labels = {one.description for one in (*view.actions.buttons.values(), view.actions.form.apply)}
    assert labels <= {*commands, *dialog}
    assert view.actions.hold_for.description in dialog
    view.close()
