"""Tests of the displays of `%gpushare` for given snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.kernel import client_api
from jupyter_gpushare.kernel.display.formatting import quota_line, state_line
from jupyter_gpushare.kernel.display.html import COLOURS
from jupyter_gpushare.kernel.display.report import Report

QUOTA = {"share": 0.5, "limit": 0.9, "memory": 8 << 30, "resident": None, "service": "online"}


def client(name: str, **changes: Any) -> dict[str, Any]:
    fields = {
        "id": name,
        "label": f"{name}.ipynb",
        "phase": "idle",
        "quota": QUOTA,
        "allocated": 3 << 29,
        "resident": 1 << 30,
        "gpu_seconds": 12.3,
        "wait_seconds": 75.0,
        "turn_count": 4,
        "queue_position": None,
        "expected_wait": None,
        "notes": [],
    }
    state = changes.get("phase", "idle")
    return {**fields, "state": state, "state_text": state, **changes}


def snapshot(*clients: dict[str, Any], running: str = "", queue: tuple[str, ...] = ()) -> dict[str, Any]:
    device = {"uuid": "GPU-0", "name": "Sim <A>", "simulated": True, "memory_total": 4 << 30, "memory_used": 1 << 30}
    turn = {"client": running, "epoch": 1, "granted_seconds": 3.0, "seconds_left": 12.0, "held": False}
    grants = [turn] if running else []
    return {"devices": [{**device, "grants": grants, "queue": list(queue)}], "clients": list(clients)}


def test_report_of_a_running_client() -> None:
    limited = client("a", phase="running", limit_text="at most 30 % of the device's time")
    text = repr(Report(snapshot(limited, client("b"), running="a", queue=("b",)), "a"))
    trains = client("a", progress_text="epoch: 3 of 10")
    assert "progress  epoch: 3 of 10" in repr(Report(snapshot(trains), "a")) and "progress" not in text
    assert "limited   at most 30 %" in text and "limited" not in repr(Report(snapshot(client("a", limit_text="")), "a"))
    assert "running · up to 12 s left" in text
    assert "share 0.5, limit 0.9, memory 8 GiB, resident as much as fits, class online" in text
    assert "1.5 GiB allocated, 1 GiB on the device" in text
    assert "12 s in 4 turns, waited 1 min 15 s" in text
    assert "12 s in 1 turn, waited" in repr(Report(snapshot(client("a", turn_count=1)), "a"))
    assert "Sim <A> (simulated) · 1 GiB of 4 GiB in use" in text
    assert "running  a.ipynb (this kernel)" in text and "#1  waiting  b.ipynb" in text
    held = snapshot(client("a"), client("b", phase="running"), running="b")
    held["devices"][0]["grants"][0]["held"] = True
    assert "held     b.ipynb" in repr(Report(held, "a")) and ">held " in Report(held, "a")._repr_html_()


def test_the_memory_without_a_quota_is_that_of_the_client_s_devices() -> None:
    known = snapshot(client("a", devices=["GPU-1"], quota={"memory": None}))
    known["devices"].append({**known["devices"][0], "uuid": "GPU-1", "memory_total": 3 << 30})
    report = Report(known, "a")
    assert "memory all of the device's (3 GiB)" in repr(report)
    assert "may allocate 3 GiB" in report._repr_html_()


def test_the_device_of_the_client_is_shown_where_there_are_several() -> None:
    known = snapshot(client("a", devices=["GPU-1"]))
    assert "device " not in repr(Report(known, "a"))
    known["devices"].append({**known["devices"][0], "uuid": "GPU-1"})
    assert "device    1 (Sim <A> (simulated))" in repr(Report(known, "a"))


def test_times_continue_from_the_snapshot() -> None:
    clients = [
        client("a", phase="waiting", queue_position=1, expected_wait=9.0),
        client("b", phase="waiting", queue_position=2, expected_wait=30.0),
        client("c", phase="running", own=False, user="bob", label=""),
    ]
    known = snapshot(*clients, running="c", queue=("a", "b", "d"))
    (device,) = known["devices"]
    assert Report(known, "a", elapsed=2.0).turns(device) == [
        ("", "running", "bob", "for 5 s, up to 10 s left"),
        ("#1", "waiting", "a.ipynb (this kernel)", "in about 7 s"),
        ("#2", "waiting", "b.ipynb", "in about 28 s"),
        ("#3", "waiting", "d", ""),
    ]
    report = Report(known, "c", elapsed=2.0)
    assert report.state == "running · up to 10 s left"
    assert dict(report.rows())["GPU time"] == "14 s in 4 turns, waited 1 min 15 s"
    device["grants"][0]["seconds_left"] = 9.0
    assert report.turns(device)[0][3] == "for 5 s, 7 s left"


def test_a_slow_answer_makes_no_coordinator_newer_than_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    age = 2.0

    class SlowApi(client_api.ClientApi):
        def request(self, message: dict[str, Any], timeout: float = 0.0) -> Any:
            nonlocal age
            age += 5.0
            return {**snapshot(client("a")), "coordinator": {"uptime_seconds": 2.1}}

    monkeypatch.setattr(client_api, "_process_age", lambda: age)
    assert "since the coordinator started" not in repr(SlowApi("a", "", lambda: "").status())


def test_report_figures_restart_with_a_new_coordinator() -> None:
    def text(age: float) -> str:
        return repr(Report({**snapshot(client("a")), "coordinator": {"uptime_seconds": 0.6}}, "a", age=age))

    assert "since the coordinator started 600 ms ago" in text(2.0)
    assert "since" not in text(0.5)
    assert "since" not in text(0.64), "the uptime may be 0.65, because the snapshot has tenths of seconds"


TIMES: list[tuple[dict[str, Any], str]] = [
    ({"state": "waiting", "state_text": "#2 in queue", "expected_wait": 40.0}, "#2 in queue · about 30 s"),
    ({"state": "waiting", "state_text": "#2 in queue", "expected_wait": 9.0}, "#2 in queue"),
    ({"state": "held", "hold_seconds_left": 70.0}, "held · 1 min left"),
    ({"state": "running", "hold_seconds_left": 70.0}, "running · up to 2 s left · held for 1 min"),
    ({"idle_seconds": 110.0}, "idle · unused for 2 min"),
    ({"idle_seconds": 20.0}, "idle"),
    ({"idle_warned": True, "evicted_in": 310.0, "suspended_in": 400.0}, "idle · memory moves off in 5 min"),
    ({"idle_warned": True, "evicted_in": 310.0, "suspended_in": 300.0}, "idle · suspended in 4 min 50 s"),
    ({"evicted_in": 310.0, "suspended_in": 300.0}, "idle"),
]


@pytest.mark.parametrize(("changes", "line"), TIMES, ids=[line for _, line in TIMES])
def test_a_state_has_the_times_that_pass(changes: dict[str, Any], line: str) -> None:
    one = client("a", **{"state_text": changes.get("state", "idle"), **changes})
    assert state_line(one, snapshot(running="a")["devices"], 10.0) == line


def test_html_report_equals_the_text_and_escapes() -> None:
    hostile = client("a", label="<script>x</script>", notes=["a < b"], limit_text="shared <x>", progress_text="<i>1")
    known = snapshot(hostile)
    known["devices"][0]["failed"] = "<b>"
    page = Report(known, "a", problem="no & no")._repr_html_()
    assert "shared &lt;x&gt;" in page and "&lt;b&gt;" in page and "<b>" not in page and "&lt;i&gt;1" in page
    assert "<script>" not in page and "&lt;script&gt;" in page and "a &lt; b" in page
    assert "Sim &lt;A&gt;" in page and "no &amp; no" in page


def test_html_has_a_memory_bar_without_scripts_and_style_sheets() -> None:
    own = client("a", phase="running", resident_by_device={"GPU-0": 1 << 30}, devices=["GPU-0"])
    other = client("b", label="", own=False, user="alice", resident_by_device={"GPU-0": 1 << 29})
    report = Report(snapshot(own, other, running="a", queue=("b",)), "a")
    report.devices[0].update(memory_used=7 << 28, utilisation=0.834, utilisation_is_estimate=True)
    page = report._repr_html_()
    assert 'aria-label="1.5 GiB allocated, 1 GiB on the device; may allocate 8 GiB"' in page
    on_device = "a.ipynb (this kernel): 1 GiB, alice: 512 MiB, not of any client: 256 MiB"
    assert f'aria-label="{on_device}"' in page and "free 2.25 GiB" in page
    assert "about 83 % busy" in page and "12 s left" in page
    assert "<script" not in page and "<style" not in page and "http" not in page


def test_unmade_memory_has_not_moved_out() -> None:
    def page(unmade: int) -> str:
        return Report(snapshot(client("a", unmade=unmade)), "a")._repr_html_()

    assert "moved out: 512 MiB" in page(0) and "moved out: 256 MiB" in page(1 << 28)
    assert "moved out" not in page(1 << 29)


def test_context_memory_is_shown_where_it_is_known() -> None:
    def report(context: int) -> Report:
        own = client("a", resident_by_device={"GPU-0": 1 << 30}, devices=["GPU-0"], context_memory=context)
        known = snapshot(own)
        known["devices"][0].update(memory_used=7 << 28, context_memory=context)
        return Report(known, "a")

    assert "contexts" not in repr(report(0)) + report(0)._repr_html_()
    line = "1.5 GiB allocated, 1 GiB on the device, 512 MiB more for contexts and code"
    assert f"memory    {line}" in repr(report(512 << 20))
    page = report(512 << 20)._repr_html_()
    assert f'aria-label="{line}; may allocate 8 GiB"' in page
    assert 'aria-label="a.ipynb (this kernel): 1 GiB, contexts and code: 512 MiB, not of any client: 256 MiB"' in page
    assert "contexts and code 512 MiB" in page and "other programs 256 MiB" in page
    assert "not of any client" not in report(1 << 30)._repr_html_()


def test_host_memory_that_is_kept_after_a_restore_is_shown() -> None:
    own = client("a", resident=3 << 29, host_pageable=80 << 20)
    assert "memory    1.5 GiB allocated, 1.5 GiB on the device, 80 MiB on the host" in repr(Report(snapshot(own), "a"))


def test_client_of_another_user_is_shown_by_user() -> None:
    other = client("secret-id", label="", own=False, user="alice", phase="running")
    for text in (lambda report: repr(report), lambda report: report._repr_html_()):
        shown = text(Report(snapshot(client("a"), other, running="secret-id"), "a"))
        assert "alice" in shown and "secret" not in shown


def test_unknown_values_are_marked() -> None:
    assert "not yet known" in repr(Report(snapshot(), "a"))
    assert "does not share its GPU" in repr(Report(snapshot(), ""))
    assert repr(Report(None, "a", "no coordinator")) == "GPU sharing does not work: no coordinator"


def test_quotas_with_parts_missing() -> None:
    assert quota_line({"share": 0.0, "limit": 1}) == "share 0, limit 1"


@pytest.mark.parametrize("others", [1, 2, 3])
def test_the_legend_has_every_colour_of_the_bar(others: int) -> None:
    clients = [client(name, resident_by_device={"GPU-0": 1 << 28}) for name in "bcd"[:others]]
    known = snapshot(*clients)
    known["devices"][0]["context_memory"] = 1 << 27
    bar, _, legend = Report(known, "a")._repr_html_().partition("border-radius:50%")
    for colour in COLOURS.values():
        assert (f"%;background:{colour}" in bar) == (f"background:{colour}" in legend), colour
