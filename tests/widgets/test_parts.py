"""The parts of a view without a kernel: what it says, what it checks, when it updates, and when its thread ends."""

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
    form.show_snapshot(QUOTA | {"limit": 0.75, "memory": 1000})  # somebody else's change
    sent, changes = form.requested_changes() or ({}, {})
    assert changes == {"share": "50%", "memory": None}
    assert form.field_texts["limit"] == "0.75"
    form.fields["resident"].value = "1GiB"  # meanwhile
    form.show_answer(QUOTA | {"share": 0.5, "limit": 0.75, "memory": None}, sent)
    assert form.requested_changes() == (form.field_texts, {"resident": "1GiB"})
    assert form.field_texts == {"share": "0.5", "limit": "0.75", "memory": "", "resident": "1GiB", "service": "online"}


def test_field_change_after_the_button_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(quota_form, "monotonic", lambda: now[0])
    sent: list[Any] = []
    form = quota_form.QuotaForm()

    def send() -> None:
        wanted = form.requested_changes()
        sent.append(wanted and wanted[1])
        if wanted and wanted[1]:
            form.show_answer(QUOTA | {"share": float(wanted[0]["share"])}, wanted[0])

    form.on_apply(send)
    form.show_snapshot(QUOTA)
    form.fields["share"].value = "3"
    assert sent == []
    form.apply.click()
    now[0] += quota_form.LATE_EDIT_SECONDS / 2
    form.fields["share"].value = "0.3"  # left by the press
    assert sent == [None, {"share": "0.3"}]
    form.fields["share"].value = "0.3"
    assert len(sent) == 2
    now[0] += quota_form.LATE_EDIT_SECONDS
    form.fields["share"].value = "0.5"
    form.show_snapshot(QUOTA | {"share": 0.3})
    assert len(sent) == 2 and form.field_texts["share"] == "0.5"


def test_a_snapshot_from_before_a_change_takes_nothing_back() -> None:
    form = quota_form.QuotaForm()
    form.show_snapshot(QUOTA)
    form.fields["share"].value = "0.5"
    form.show_answer(QUOTA | {"share": 0.5}, form.field_texts)
    form.show_snapshot(QUOTA)
    assert form.requested_changes() == (form.field_texts, {}) and form.field_texts["share"] == "0.5"
    form.show_snapshot(QUOTA | {"share": 0.5})
    form.show_snapshot(QUOTA)  # somebody took it back
    assert form.requested_changes() == (form.field_texts, {}) and form.field_texts["share"] == "0.25"


@pytest.fixture
def view(coordinator: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a client without a program, so that nothing happens unless a test does it."""
    monkeypatch.setenv("GPUSHARE_CLIENT", "a")
    with_quota = messages.Register(client="a", token="t", label="a.ipynb", quota="share=0.5")
    coordinator.request(with_quota)
    made = GpuShareView()
    made._view_count = 1  # as a page says that shows it
    yield made
    made.close()


def test_front_ends_get_changes_only(
    view: Any, coordinator: Any, monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    """However often the thread looks."""
    monkeypatch.setattr(subscription, "CLOCK_SECONDS", 0.01)
    wait_until(lambda: "share 0.5" in view.state.value)
    told: list[str] = []
    looks: list[int] = []
    view.state.observe(lambda change: told.append(change["new"]), "value")
    monkeypatch.setattr(view_html, "page", lambda report, _page=view_html.page: (looks.append(1), _page(report))[1])
    wait_until(lambda: len(looks) > 50)
    assert told == []
    coordinator.request(messages.SetQuota(client="a", changes={"share": 0.125}))
    wait_until(lambda: told)
    wait_until(lambda: len(looks) > 100)
    assert len(told) == 1 and "share 0.125" in told[0]


def test_many_changes_are_shown_twice_a_second_at_most(view: Any, coordinator: Any, wait_until: Any) -> None:
    wait_until(lambda: "share 0.5" in view.state.value)
    told: list[str] = []
    view.state.observe(lambda change: told.append(change["new"]), "value")
    began = time.monotonic()
    for thousandth in range(1, 400):
        coordinator.request(messages.SetQuota(client="a", changes={"share": thousandth / 1000}))
    wait_until(lambda: "share 0.399" in view.state.value)
    assert len(told) <= 3 + 2 * (time.monotonic() - began)


def test_what_a_cell_displays_replaces_what_it_displayed_before(view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no page tells that it is gone, since it was loaded anew."""
    place = ["one", "request 1"]
    monkeypatch.setattr("jupyter_gpushare.widgets.identity.running_cell", lambda: tuple(place))
    later = GpuShareView()
    for shown in (view, later):
        shown._repr_mimebundle_()
    assert view.following and later.following, "both displayed by one run"
    place[:] = "two", "request 2"
    later._repr_mimebundle_()
    place[:] = "one", "request 3"
    again = GpuShareView()
    again._repr_mimebundle_()
    assert again.following and later.following, "still displayed by the other cell"
    assert not view.following
    view._repr_mimebundle_()
    assert view.following and again.following
    for one in (later, again):
        one.close()


class Wall:
    """Somebody who is shown things."""

    last = subscription.StatusUpdate()

    def show(self, seen: subscription.StatusUpdate) -> None:
        self.last = seen


def test_thread_ends_with_its_last_view(no_coordinator: str, monkeypatch: pytest.MonkeyPatch, wait_until: Any) -> None:
    monkeypatch.setattr(subscription, "CLOCK_SECONDS", 0.05)
    walls = [Wall()]
    following = subscription.StatusSubscription(no_coordinator, walls[0].show)
    following.start()
    assert "no coordinator answers" in wait_until(lambda: walls[0].last.problem)
    assert following.running
    walls.clear()
    gc.collect()
    wait_until(lambda: not following.running)


def test_a_follower_that_is_stopped_at_once_ends(no_coordinator: str) -> None:
    wall = Wall()
    for _ in range(50):
        following = subscription.StatusSubscription(no_coordinator, wall.show)
        following.start()
        following.stop()
        assert not following.running


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
    ours = {one.description for one in (*view.actions.buttons.values(), view.actions.form.apply)}
    assert ours <= {*commands, *dialog}
    assert view.actions.hold_for.description in dialog
    view.close()
