"""Tests of the commands `jupyter gpushare simulate`, `record` and `bench scale`: output, files and errors."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cli import main, record
from jupyter_gpushare.simulation import experiment, scale
from jupyter_gpushare.simulation.reports import html_report, text_report

QUICK = ["simulate", "--trace", "notebooks:5", "--hours", "0.5"]


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*QUICK, "--json", *arguments]) == 0
    output: dict[str, Any] = json.loads(capsys.readouterr().out)
    return output


def test_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    output = figures(capsys, "--policy", "fcfs", "--policy", "fcfs:idle_release=5,cell_linger=60", "--seed", "7")
    assert (output["seed"], output["trace"]) == (7, "notebooks:5")
    assert list(output["policies"]) == ["fcfs", "fcfs:idle_release=5,cell_linger=60"]
    for results in output["policies"].values():
        assert {"cells", "throughput", "switches", "bytes_moved", "jain", "longest_wait"} <= set(results)
        assert list(results["cells"]) == ["short", "medium", "long"]
        keys = {"count", "wait_p50", "wait_p95", "wait_p99", "slowdown_p50", "slowdown_p95"}
        assert all(keys <= set(one) for one in results["cells"].values())
        assert (
            results["cells"]["short"]["wait_p50"]
            <= results["cells"]["short"]["wait_p95"]
            <= results["longest_wait"] * 10  # a cell may wait several times
        )
        assert 0 < results["throughput"] <= 1 and 0 < results["jain"] <= 1


def test_json_lists_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures(capsys, "--seeds", "2")["seed"] == [1, 2]
    assert figures(capsys, "--seed", "3", "--seed", "9")["seed"] == [3, 9]


def test_common_settings_apply_to_all_policies(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--policy", "fcfs", "--policy", "fcfs:time_quantum=1", "--jobs", "1", "--seed", "2"]
    output = figures(capsys, *arguments, "--set", "time_quantum=30", "--set", "sharing=exclusive")["policies"]
    assert output["fcfs:time_quantum=1"]["switches"] > output["fcfs"]["switches"]
    assert (
        output
        == figures(capsys, *arguments, "--set", "time_quantum=30", "--set", "c.GpuShare.sharing=exclusive")["policies"]
    )


def test_settings_of_a_device_apply_to_that_device(capsys: pytest.CaptureFixture[str]) -> None:
    own = "interactive:devices.0.policy=fcfs,devices.0.time_quantum=5"
    output = figures(capsys, "--policy", "fcfs:time_quantum=5", "--policy", own)["policies"]
    assert output[own] == output["fcfs:time_quantum=5"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("devices.7.policy=fcfs", "devices: '7' does not exist: allowed are GPU-0 and indexes"),
        ("devices.0.colour=red", "setting 'colour' is unknown: allowed are time_quantum"),
        ("devices.0.policy=lottery", "policy='lottery' is unknown"),
    ],
)
def test_a_wrong_setting_of_a_device_is_refused(capsys: pytest.CaptureFixture[str], setting: str, words: str) -> None:
    assert main([*QUICK, "--set", setting]) == 2
    assert words in capsys.readouterr().err


def test_table_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--policy", "fcfs"]) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "Simulated: notebooks:5; 0.5 simulated hours; 1 x 80 GB at 50 GB/s" in " ".join(text.split())
    assert all(word in text for word in ("fcfs", "short", "medium", "long", "Jain"))


def test_table_has_the_ratio_to_the_yardstick(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--jobs", "1", "--policy", "fcfs", "--policy", "clairvoyant"]
    policies = figures(capsys, *arguments)["policies"]
    ratio = policies["fcfs"]["mean_bounded_slowdown"] / policies["clairvoyant"]["mean_bounded_slowdown"]
    assert ratio > 2
    assert main([*QUICK, *arguments]) == 0
    table = capsys.readouterr().out.partition("over that of clairvoyant")[2]
    rows = {words[0]: words[-1] for words in map(str.split, table.splitlines()) if words}
    assert (rows["fcfs"], rows["clairvoyant"]) == (f"{ratio:.3g}", "1")
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 80


def test_table_has_the_time_under_each_limit(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--jobs", "1", "--policy", "fcfs"]
    limited = figures(capsys, *arguments)["policies"]["fcfs"]["limited"]
    seconds = {client: reasons["others_wait"] for client, reasons in limited.items()}
    assert max(seconds, key=seconds.__getitem__) == "job-0"
    assert main([*QUICK, *arguments]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if "others_wait" in line]
    total, longest = (text_report.format_number(value) for value in (sum(seconds.values()), seconds["job-0"]))
    assert row == ["fcfs", "others_wait", str(len(seconds)), total, longest, "job-0"]


def test_html_report_is_self_contained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert main([*QUICK, "--policy", "fcfs", "--policy", "interactive", "--html", str(path)]) == 0
    page = path.read_text()
    assert "All figures are simulated" in page
    assert "<script src" not in page
    for policy in ("fcfs", "interactive"):
        assert policy in page


def test_unwritable_report_is_refused_before_the_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--hours", "100000", "--html", str(tmp_path / "missing" / "r.html")]) == 2
    assert f"missing/r.html: the folder {tmp_path}/missing does not exist: allowed is" in capsys.readouterr().err


def test_idle_policy_settings_are_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--set", "idle_evict=auto", "--set", "idle_suspend=600"]) == 0
    assert "interactive" in capsys.readouterr().out


def test_missing_plotly_is_reported_with_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(html_report.importlib.util, "find_spec", lambda name: None)
    assert main([*QUICK, "--html", str(tmp_path / "r")]) == 2
    assert "pip install 'jupyter-gpushare[reports]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--policy", "unknown_policy"], "weighted, fcfs, clairvoyant\n"),
        (["--policy", "fcfs:speed=3"], "setting 'speed' is unknown here: allowed are time_quantum"),
        (["--policy", "fcfs:speed"], "not of the form setting=value"),
        (["--set", "time_quantum=-1"], "time_quantum=-1 is out of range"),
        (["--set", "idle_evict=0.5"], "idle_evict=0.5 is out of range: allowed are 1 to 604800 seconds, 0 for never"),
        (["--set", "idle_suspend=auto"], "idle_suspend='auto' is not a number"),
        (["--set", "cell_linger=soon"], "cell_linger='soon' is not a number"),
        (["--set", "speed"], "not of the form setting=value"),
        (["--set", "inflight_window=99"], "not a number from 0.001 to 10"),
        (["--trace", "notebooks:none"], "allowed is notebooks:N"),
        (["--trace", "/not/there.jsonl"], "/not/there.jsonl: the folder /not does not exist"),
        (["--trace", "openb:/there.csv"], "/there.csv: No such file"),
    ],
)
def test_invalid_argument_is_refused_with_a_reason(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, *arguments]) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--load", "0"], ["--seed", "x"], ["--devices", "0"], ["--device-memory", "big"]]
)
def test_invalid_numbers_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*QUICK, *arguments])
    assert arguments[0] in capsys.readouterr().err


def test_a_recorded_trace_brings_its_devices_and_its_length(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(
        '{"type": "trace", "version": 1, "name": "mine", "seconds": 100}\n'
        '{"type": "device", "memory": 1000, "link": 10}\n'
        '{"type": "client", "id": "a", "memory": 500}\n'
        '{"type": "cell", "client": "a", "phases": [0, 5]}\n'
    )
    assert main(["simulate", "--trace", str(path), "--json", "--policy", "fcfs"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["trace"], output["seconds"]) == ("mine", 100.0)
    assert output["parameters"] == {"devices": 1, "device_memory": 1000, "link": 10.0}
    cells = output["policies"]["fcfs"]["cells"]["short"]
    assert (cells["count"], cells["wait_p50"]) == (1, pytest.approx(500 / 10, abs=0.01))


def test_a_trace_brings_mig_slices_and_training_steps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The client of two devices is refused, because a program uses one MIG slice."""
    path = tmp_path / "trace"
    piece = '{"type": "device", "memory": 1000, "link": 1000, "parent": "GPU-whole"}\n'
    path.write_text(
        '{"type": "trace", "version": 1, "seconds": 100}\n'
        + 2 * piece
        + '{"type": "client", "id": "a", "memory": 500, "gpus": 2}\n'
        + '{"type": "client", "id": "b", "memory": 500, "step": 0.5}\n'
        + '{"type": "cell", "client": "b", "phases": [0, 5]}\n'
    )
    assert main(["simulate", "--trace", str(path), "--json"]) == 0
    (results,) = json.loads(capsys.readouterr().out)["policies"].values()
    assert (results["refused"], results["cells"]["short"]["count"]) == (1, 1)


def test_record_without_a_coordinator_fails_with_a_message(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["record", str(tmp_path / "t"), "--socket", str(tmp_path / "none.sock")]) == 1
    assert "no coordinator answers" in capsys.readouterr().err


def test_record_names_a_missing_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["record", str(tmp_path / "missing" / "t")]) == 1
    assert f"the folder {tmp_path}/missing does not exist: allowed is a file in an" in capsys.readouterr().err


def test_record_reports_a_full_disk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class OneSnapshot(contextlib.nullcontext[Any]):
        def __enter__(self) -> OneSnapshot:
            return self

        def subscribe(self) -> list[dict[str, Any]]:
            return [{"clients": [], "devices": []}]

    monkeypatch.setattr(record, "Client", OneSnapshot)
    assert main(["record", "/dev/full"]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_scale_measures_decisions() -> None:
    output = scale.measure_decisions(experiment.parse_variant("interactive"), clients=20, devices=2, measured=500)
    assert output["measured"] >= 500
    assert output["clients"] == 20
    assert 0 < output["p50"] <= output["p99"]


def test_scale_counts_the_clients_that_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale._TimedSimulation, "run_decisions", lambda one, _: one.run_until(one.now + 2.75e-4))
    output = scale.measure_decisions(experiment.parse_variant("interactive"), clients=20, devices=2, measured=500)
    assert output["clients"] == 6


@pytest.mark.parametrize("policy", ["unknown_policy", "clairvoyant"])
def test_bench_scale_refuses_an_unknown_policy(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scale", "--policy", policy]) == 1
    assert "allowed are" in capsys.readouterr().err
