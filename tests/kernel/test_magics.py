"""Tests of `%gpushare` in real kernels, in an environment without this package."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.kernel.display import result_messages
from jupyter_gpushare.kernel.magics import SUBCOMMANDS
from jupyter_gpushare.wire import messages

# The environment of this kernel lacks the package, so it can import only the files that the startup file loads.
FOREIGN = """
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name == "jupyter_gpushare":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Lacking())
from ipykernel import kernelapp
kernelapp.main()
"""


@pytest.fixture
def foreign(jupyter: Path) -> str:
    """Install a kernel without the package in its environment, and return its name; the provisioner starts it."""
    (jupyter / "foreign").mkdir()
    spec = {
        "argv": [sys.executable, "-c", FOREIGN, "-f", "{connection_file}"],
        "display_name": "Foreign",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": "gpushare-provisioner"}},
    }
    (jupyter / "foreign" / "kernel.json").write_text(json.dumps(spec))
    return "foreign"


@pytest.fixture
def notebook(coordinator: Any, start: Any, foreign: str) -> Any:
    return start(foreign, env={"JPY_SESSION_NAME": "work/train.ipynb"})


def shown(notebook: Any, line: str = "%gpushare") -> dict[str, Any]:
    ran = notebook.run(line)
    assert ran.status == "ok" and not ran.stderr, ran
    (data,) = ran.displays
    return dict(data)


def test_status_shows_this_kernel(coordinator: Any, notebook: Any, wait_until: Any) -> None:
    """The utilisation of the device is unknown in the coordinator's first second, and later it may change."""
    wait_until(lambda: coordinator.request(messages.Status())["devices"][0]["utilisation"] is not None)
    wait_until(lambda: shown(notebook) == shown(notebook, "%gpushare status"))
    data = shown(notebook)
    for text in (data["text/plain"], data["text/html"]):
        assert "train.ipynb" in text and "idle" in text and "limit 1" in text


def test_nothing_is_left_in_the_users_namespace(notebook: Any) -> None:
    names = notebook.value("[n for n in dir() if 'gpu' in n.lower()]")
    assert names == []
    assert notebook.value("[p for p in __import__('sys').path if 'gpushare' in p.rsplit('/', 1)[-1]]") == []


def test_messages_to_a_kernel_with_a_turn() -> None:
    given_up = "This kernel gives up the rest of its turn"
    assert result_messages.released({"turn": True, "hold": False}) == f"{given_up}."
    assert result_messages.released({"turn": True, "hold": True}) == f"{given_up}, and its hold has ended."
    kept = {"hold_seconds_left": 90.0, "running": True}
    assert (
        result_messages.hold_changed(kept, "; how")
        == "This kernel keeps the GPU for 1 min 30 s, also between cells; how."
    )


def test_each_sub_command(coordinator: Any, notebook: Any) -> None:
    def run(words: str, *expected: str) -> dict[str, Any]:
        """Run a command, check its output, and return the client in the coordinator's snapshot."""
        output = notebook.run(f"%gpushare {words}").stdout
        assert all(text in output for text in expected), output
        (client,) = coordinator.clients().values()
        return dict(client)

    quota = "share 0.5, limit 0.9, memory 8 GiB"
    client = run("quota memory=8GiB share=0.5 limit=0.9", f"The quota is now: {quota}")
    assert (client["quota"]["share"], client["quota"]["memory"]) == (0.5, 8 << 30)
    run("quota", f"Quota: {quota}")
    client = run("class=offline, share='0.3'", "The quota is now: share 0.3", "class offline\n")
    assert (client["quota"]["share"], client["quota"]["service"]) == (0.3, "offline")
    client = run("LIMIT = 80 % memory='50 %'", "The quota is now: share 0.3, limit 0.8, memory ")
    assert client["quota"]["memory"] < 8 << 30
    client = run("hold 5min", "When this kernel gets the GPU, it keeps the GPU up to 5 min from now")
    assert 290 < client["hold_seconds_left"] <= 300
    run("hold 0", "no longer")
    run("hold=1min", "up to 1 min from")
    run("release", "hold has ended")
    run("release", "no turn and no hold", "nothing to give up")
    run("evict", "no memory on the GPU")
    run("suspend", "%gpushare resume", f"jupyter gpushare resume {notebook.manager.kernel_id}")
    run("suspend", "was suspended already")
    run("why", "This kernel is limited: no turn: it is suspended (for ", "State: suspended · GPU calls wait")
    assert "suspended · GPU calls wait until it is resumed" in shown(notebook)["text/plain"]
    assert "resume it first" in notebook.run("%gpushare hold").stderr
    run("resume", "takes turns again")
    run("resume", "not suspended")
    shown_quota = "\nQuota: share 0.3, limit 0.8, memory 512 MiB, resident as much as fits, class offline"
    run("why", "No limit of launches or turns holds for this kernel now.\nState: idle", shown_quota)


def test_help_names_everything(notebook: Any) -> None:
    text = notebook.run("%gpushare help").stdout
    assert text == notebook.run("%gpushare --help").stdout == notebook.run("%gpushare -h").stdout
    for word in (*SUBCOMMANDS, "memory=8GiB", "share=0.5", "class=offline", "%%gpushare key=value", "hold 5min"):
        assert word in text


USAGE_ERRORS = [
    (
        "frobnicate",
        "unknown sub-command 'frobnicate': allowed are status, why, quota, hold, release, evict, move, suspend, "
        "resume, history, help, or a quota: share=, limit=, memory=, resident=, class=",
    ),
    ("statsu", "did you mean 'status'?"),
    ("shares=0.5", "unknown quota key 'shares': allowed are share, limit, memory"),
    ("class=online service=offline", "'service' is given twice"),
    ("quota share 0.5", "'share' is not of the form key=value"),
    ("share 0.5", "unknown sub-command 'share' (a quota needs a value: share=…)"),
    ("share = 2", "from 0 to 1"),
    ("quota share=", "'share=' is not of the form key=value"),
    ("move", "%gpushare move needs a device, by its index, name or UUID: for example %gpushare move 1"),
    ("hold=", "'hold=' is not of the form key=value"),
    ("quota share=0.1 share=0.2", "given twice"),
    ("memory='8GiB", "No closing quotation"),
    ("quota memory=-1", "memory=-1 is out of range: allowed is a size from 1 MiB"),
    ("memory=8", "memory=8 is out of range: allowed is a size from 1 MiB, for example 8GiB; a number without a unit"),
    ("hold -5", "'-5' is not a duration (examples: 90, 30s, 5min, 1h); allowed are 0 to 600 seconds (max_hold)"),
    ("class=none", "class='none' is unknown: allowed are online, offline"),
    ("release now", "takes no arguments"),
    ("hold for ever", "'for ever' is not a duration (examples: 90, 30s, 5min, 1h)"),
]


def test_usage_errors_have_no_traceback(coordinator: Any, notebook: Any) -> None:
    before = coordinator.clients()[notebook.manager.kernel_id]["quota"]
    for line, complaint in USAGE_ERRORS:
        ran = notebook.run(f"%gpushare {line}")
        assert ran.status == "error" and ran.reply["ename"] == "UsageError"
        assert complaint in ran.stderr and "Traceback" not in ran.stderr + ran.stdout
        assert coordinator.clients()[notebook.manager.kernel_id]["quota"] == before


COMPLETIONS: list[tuple[str, set[str]]] = [
    ("%gpushare ", {*SUBCOMMANDS, "share=", "limit=", "memory=", "resident=", "class="}),
    ("%gpushare re", {"release", "resume", "resident="}),
    ("%gpushare share=0.5 cl", {"class="}),
    ("%gpushare hold 5", {"5min"}),
    ("%%gpushare ", {"share=", "limit=", "memory=", "resident=", "class="}),
    ("%%gpushare share=0.3 class=of", {"class=offline"}),
    ("x = 1\n%gpushare quota sh", {"share="}),
    ("%gpushare quota share=0.5 ", {"limit=", "memory=", "resident=", "class="}),
    ("%gpushare quota service=of", {"service=offline"}),
]


def test_tab_completes(notebook: Any) -> None:
    for line, expected in COMPLETIONS:
        reply = notebook.kernel.complete(line, reply=True, timeout=60)["content"]
        word = "" if line.endswith(" ") else line.split()[-1]
        assert {match.strip() for match in reply["matches"]} == expected, line
        assert line[reply["cursor_start"] : reply["cursor_end"]] == word


def test_magics_work_without_a_coordinator(coordinator: Any, notebook: Any, wait_until: Any) -> None:
    notebook.run("pass")
    coordinator.end(signal.SIGKILL)
    status = shown(notebook)["text/plain"]
    assert "does not work" in status and coordinator.socket in status
    ran = notebook.run("%gpushare quota share=0.5")
    assert ran.status == "error" and "nothing was changed" in ran.stderr and "Traceback" not in ran.stderr
    coordinator.start()
    wait_until(lambda: coordinator.clients().get(notebook.manager.kernel_id))
    assert "train.ipynb" in shown(notebook)["text/plain"]


def test_unshared_kernel_reports_the_reason(
    coordinator: Any, start: Any, foreign: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_gpushare.launch import kernel_env

    monkeypatch.setattr(kernel_env, "SHIM", tmp_path / "libgpushare.so")
    notebook = start(foreign)
    first = notebook.run("print('works')")
    assert first.stdout == "works\n"
    assert "GPU sharing does not work" in first.stderr and str(tmp_path / "libgpushare.so") in first.stderr
    assert notebook.run("pass").stderr == ""
    assert "does not work" in shown(notebook)["text/plain"]
    ran = notebook.run("%gpushare quota share=0.5")
    assert ran.status == "error" and "does not share its GPU" in ran.stderr


def test_missing_shim_in_the_process_is_reported(coordinator: Any, start: Any, jupyter: Path, foreign: str) -> None:
    spec = json.loads((jupyter / "foreign" / "kernel.json").read_text())
    spec["argv"] = ["env", "-u", "LD_PRELOAD", *spec["argv"]]
    (jupyter / "foreign" / "kernel.json").write_text(json.dumps(spec))
    first = start(foreign).run("pass")
    assert "GPU sharing does not work" in first.stderr and "not loaded" in first.stderr


def test_kernel_with_sharing_off_reports_that(coordinator: Any, start: Any, foreign: str) -> None:
    notebook = start(foreign, env={"GPUSHARE_DISABLE": "1"})
    assert "GPUSHARE_DISABLE=1" in notebook.run("pass").stderr
    assert notebook.run("pass").stderr == ""
    assert "GPUSHARE_DISABLE=1" in shown(notebook)["text/plain"]


def test_the_users_own_startup_file_runs_first(coordinator: Any, start: Any, foreign: str, tmp_path: Path) -> None:
    folder = tmp_path / "user's"
    folder.mkdir()
    (folder / "helper.py").write_text("answer = 42")
    (folder / "startup.py").write_text(
        "import helper, sys\nanswer = helper.answer\nplace = __file__\n"
        "early = 'gpushare' in get_ipython().magics_manager.magics['line']\nsys.path.append('/kept')\n"
    )
    notebook = start(foreign, env={"PYTHONSTARTUP": str(folder / "startup.py")})
    assert notebook.value("[answer, place, early]") == [42, str(folder / "startup.py"), False]
    assert notebook.value("'/kept' in sys.path")
    assert "train" not in notebook.run("%gpushare help").stderr


def test_an_error_in_the_users_startup_file_does_not_prevent_sharing(
    coordinator: Any, start: Any, foreign: str, tmp_path: Path
) -> None:
    (tmp_path / "startup.py").write_text("before = 1\n1/0\n")
    notebook = start(foreign, env={"PYTHONSTARTUP": str(tmp_path / "startup.py")})
    assert notebook.value("before") == 1
    assert notebook.run("%gpushare help").status == "ok"


def test_plain_python_is_unchanged(tmp_path: Path) -> None:
    import os
    import subprocess

    from jupyter_gpushare.launch import kernel_env

    (tmp_path / "mine.py").write_text("mine = 1\n")
    env = {
        **os.environ,
        "PYTHONSTARTUP": str(kernel_env.STARTUP),
        "GPUSHARE_STARTUP_CHAIN": str(tmp_path / "mine.py"),
        "GPUSHARE_PREPARED": "k1",
    }
    done = subprocess.run(
        [sys.executable, "-i", "-q"], input="print(mine, sorted(globals()))\n", env=env, capture_output=True, text=True
    )
    assert done.stdout.startswith("1 [")
    assert "gpushare" not in done.stdout and "Traceback" not in done.stderr
    assert "contextlib" not in done.stdout
