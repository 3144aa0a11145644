"""Tests of `%%gpushare`: the quota of one cell, its end, its errors, and the result and traceback of the cell."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.kernel.cell_quota import transform

from ..support.polling import WAIT_SECONDS

MINE = "import os\ndef quota():\n    import jupyter_gpushare as gs\n    return gs.quota()\n"
FIRST = "%%gpushare class=offline share=0.3\n"


@pytest.fixture
def notebook(coordinator: Any, start: Any) -> Any:
    notebook = start()
    assert notebook.run(MINE).status == "ok"
    return notebook


def quota(coordinator: Any, notebook: Any) -> dict[str, Any]:
    return dict(coordinator.clients()[notebook.manager.kernel_id]["quota"])


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


BODIES = {
    "import asyncio\nawait asyncio.sleep(0.01)\nq = quota()": "ok",
    "q = quota()\n1/0": "error",
    "q = quota()\nawait asyncio.sleep(0)\n1/0": "error",
    "%time q = quota()": "ok",
    "%%time\nq = quota()": "ok",
    "\n\n%%capture\nq = quota()": "ok",
    "from __future__ import annotations\nq = quota()": "ok",
    "get_ipython().run_cell('1/0')\nq = quota()": "ok",
    "q = quota()\nget_ipython().run_cell('')\nraise SystemExit": "error",
}


def test_cell_quota_lasts_for_the_cell(coordinator: Any, notebook: Any) -> None:
    before = quota(coordinator, notebook)
    ran = notebook.run(FIRST + "2")
    assert ran.displays == [{"text/plain": "2"}] and not ran.stderr
    for body, status in BODIES.items():
        notebook.run("q = {}")
        assert notebook.run(FIRST + body).status == status, body
        assert notebook.value("[q.get('share'), q.get('service')]") == [0.3, "offline"], body
        assert quota(coordinator, notebook) == before, body


def test_cell_quota_lasts_under_another_cell_magic(coordinator: Any, notebook: Any) -> None:
    before = quota(coordinator, notebook)
    assert notebook.run("%%time\n" + FIRST + "q = quota()").status == "ok"
    assert notebook.value("q['share']") == 0.3
    assert quota(coordinator, notebook) == before


def test_syntax_errors_name_the_line_that_the_user_sees(notebook: Any) -> None:
    reply = notebook.run(FIRST + "a = 1\na = = 2").reply
    assert reply["ename"] == "SyntaxError" and "line 3" in plain("\n".join(reply["traceback"]))


FAILING = {
    "1/0  # here": 2,
    "a = 1\nb = 0\na / b  # here": 4,
    "\n1/0  # here": 3,
    "import asyncio; await asyncio.sleep(0)\n1/0  # here": 3,
    "%%gpushare limit=0.9\n1/0  # here": 3,
    "q = get_ipython().run_cell('%%gpushare share=0.1\\n2').result\n1/0  # here": 3,
    "def f():\n    1/0  # here\nf()": 3,
    "get_ipython().run_cell_magic('capture', '', '1')\n1/0  # here": 3,
}


def test_tracebacks_show_the_line_that_the_user_wrote(notebook: Any) -> None:
    for body, line in FAILING.items():
        text = plain("\n".join(notebook.run(FIRST + body).reply["traceback"]))
        assert "      1 # %%gpushare class=offline share=0.3\n" in text, text
        assert re.search(f"----> {line} .*# here", text) and "'gpushare'" not in text, text


def test_a_magic_inside_may_change_the_quota_permanently(coordinator: Any, notebook: Any) -> None:
    assert notebook.run(FIRST + "%gpushare share=0.5").status == "ok"
    after = quota(coordinator, notebook)
    assert (after["share"], after["service"]) == (0.5, "online")


def test_nested_cells_undo_their_own_changes(coordinator: Any, notebook: Any) -> None:
    before = quota(coordinator, notebook)
    inner = "%%gpushare share=0.1\ninner = quota()['share']"
    body = f"first = quota()['share']\nget_ipython().run_cell({inner!r})\nlast = quota()['share']"
    assert notebook.run(FIRST + body).status == "ok"
    assert notebook.value("[first, inner, last]") == [0.3, 0.1, 0.3]
    assert quota(coordinator, notebook) == before


def test_silent_requests_and_scripts_of_nbconvert(coordinator: Any, notebook: Any) -> None:
    before = quota(coordinator, notebook)
    assert notebook.run(FIRST + "q = quota()", silent=True).status == "ok"
    assert notebook.value("q['share']") == 0.3 and quota(coordinator, notebook) == before
    script = "get_ipython().run_cell_magic('gpushare', 'share=0.4', 'q = quota()\\n{}')"
    assert notebook.run(script.format("")).status == "ok"
    assert notebook.run(script.format("1/0")).reply["ename"] == "ZeroDivisionError"
    assert notebook.value("q['share']") == 0.4 and quota(coordinator, notebook) == before


@pytest.mark.parametrize("body", ["while True: pass", "import asyncio; await asyncio.sleep(600)"])
def test_interrupt_reverts_the_cell_quota(
    coordinator: Any, notebook: Any, wait_until: Any, tmp_path: Path, body: str
) -> None:
    before = quota(coordinator, notebook)
    notebook.send(FIRST + "open('inside', 'w').close()\n" + body)
    wait_until((tmp_path / "inside").exists)
    assert quota(coordinator, notebook)["share"] == 0.3
    notebook.manager.interrupt_kernel()
    notebook.kernel.kernel_info()  # ipykernel notices the interrupt of an await with the next message
    wait_until(lambda: quota(coordinator, notebook) == before)


USAGE_ERRORS = {
    "share": "'share' is not of the form key=value",
    "share=2": "from 0 to 1",
    "share = 3": "from 0 to 1",
    "hold 5min": "'hold' is not of the form key=value",
    "": "%%gpushare needs key=value, for example class=offline",
}


def test_usage_errors_prevent_the_cell(coordinator: Any, notebook: Any) -> None:
    before = quota(coordinator, notebook)
    for line, complaint in USAGE_ERRORS.items():
        ran = notebook.run(f"%%gpushare {line}\nran = True")
        assert ran.status == "error" and ran.reply["ename"] == "UsageError"
        assert complaint in ran.stderr and "Traceback" not in ran.stderr + ran.stdout
    for body in ("", "\n\n"):
        ran = notebook.run("%%gpushare share=0.3\n" + body)
        assert ran.reply["ename"] == "UsageError" and "empty" in ran.stderr and "%gpushare" in ran.stderr
    assert notebook.value("'ran' in globals()") is False
    assert quota(coordinator, notebook) == before


def test_reading_a_cell_changes_nothing(coordinator: Any, notebook: Any) -> None:
    before = coordinator.clients()[notebook.manager.kernel_id]
    code = FIRST + "import sys\nsys.vers"
    reply = notebook.kernel.complete(code, reply=True, timeout=WAIT_SECONDS)["content"]
    assert {"version", "version_info"} <= {one.rpartition(".")[2] for one in reply["matches"]}
    complete = [notebook.reply_to(notebook.kernel.is_complete(one))["status"] for one in (code, code + "\n\n")]
    assert complete == ["incomplete", "complete"]  # as for every line with %%
    assert notebook.run("%%gpushare?").status == "ok"
    assert coordinator.clients()[notebook.manager.kernel_id]["quota"] == before["quota"]


def test_without_a_coordinator_the_cell_does_not_run(coordinator: Any, notebook: Any) -> None:
    coordinator.send(signal.SIGSTOP)
    ran = notebook.run(
        "import sys; sys.modules['_gpushare_kernel.connection'].QUOTA_TIMEOUT_SECONDS = 0\n%gpushare help"
    )
    ran = notebook.run(FIRST + "ran = True")
    assert ran.reply["ename"] == "UsageError" and "the request was withdrawn" in ran.stderr
    coordinator.send(signal.SIGCONT)
    assert notebook.value("'ran' in globals()") is False


def test_cell_quota_is_reverted_after_the_coordinator_returns(coordinator: Any, notebook: Any, wait_until: Any) -> None:
    before = quota(coordinator, notebook)
    stop = f"import os, signal\nos.kill({coordinator.pid}, signal.SIGSTOP)"
    assert notebook.run(FIRST + stop).status == "ok"
    coordinator.send(signal.SIGCONT)
    wait_until(lambda: quota(coordinator, notebook) == before)


def test_killed_kernel_leaves_no_cell_quota(coordinator: Any, notebook: Any, wait_until: Any, tmp_path: Path) -> None:
    before = quota(coordinator, notebook)
    notebook.send(FIRST + "open('inside', 'w').close()\nwhile True: pass")
    wait_until((tmp_path / "inside").exists)
    assert quota(coordinator, notebook)["share"] == 0.3
    os.kill(notebook.pid, signal.SIGKILL)
    wait_until(lambda: quota(coordinator, notebook) == before)


def test_next_coordinator_keeps_and_reverts_the_cell_quota(
    coordinator: Any, notebook: Any, wait_until: Any, tmp_path: Path
) -> None:
    notebook.run("%gpushare limit=0.9 share=0.1")
    before = quota(coordinator, notebook)
    inner = "%%gpushare limit=0.8\nopen('inside', 'w').close()\nwhile not os.path.exists('end'): pass"
    message = notebook.send(FIRST + f"get_ipython().run_cell({inner!r})")
    wait_until((tmp_path / "inside").exists)
    during = quota(coordinator, notebook)
    assert (during["share"], during["limit"]) == (0.3, 0.8)
    coordinator.end()
    coordinator.start()
    wait_until(lambda: notebook.manager.kernel_id in coordinator.clients() and quota(coordinator, notebook) == during)
    (tmp_path / "end").touch()
    notebook.reply_to(message)
    wait_until(lambda: quota(coordinator, notebook) == before)


def test_ignored_quota_field_is_reported(coordinator: Any, notebook: Any) -> None:
    coordinator.set(policy="fcfs")
    assert "Note: share 0.3 counts in placement" in notebook.run(FIRST + "1").stdout
    assert notebook.run("%%gpushare class=offline\n1").stdout == ""


def test_failed_revert_is_reported(coordinator: Any, notebook: Any) -> None:
    notebook.run("from jupyter_gpushare.demo.gpu import Gpu\ngpu = Gpu()")
    notebook.run("%gpushare memory=1MiB")
    ran = notebook.run("%%gpushare memory=64MiB share=0.3\narray = gpu.full(1 << 20, 0.0)")
    assert ran.status == "ok", ran
    assert "memory=64MiB stays after %%gpushare, instead of memory=1MiB" in ran.stderr
    after = quota(coordinator, notebook)
    assert (after["share"], after["memory"]) == (0, 64 << 20)


def test_subshells_do_not_mix_up_their_quotas(coordinator: Any, notebook: Any, wait_until: Any, tmp_path: Path) -> None:
    before = quota(coordinator, notebook)
    subshell = notebook.subshell()
    wait = "\nimport os, time\nwhile not os.path.exists('{}'): time.sleep(0.01)"
    main = notebook.send("%%gpushare share=0.3" + wait.format("main"))
    wait_until(lambda: quota(coordinator, notebook)["share"] == 0.3)
    notebook.send_to(subshell, "%%gpushare share=0.2" + wait.format("sub"))
    wait_until(lambda: quota(coordinator, notebook)["share"] == 0.2)
    (tmp_path / "main").touch()
    notebook.reply_to(main)
    assert quota(coordinator, notebook)["share"] == 0.2
    (tmp_path / "sub").touch()
    wait_until(lambda: quota(coordinator, notebook) == before)


def test_cell_quota_works_in_an_ipython_script(coordinator: Any, tmp_path: Path) -> None:
    (tmp_path / "job.ipy").write_text(FIRST + "%gpushare quota\n")
    (tmp_path / "then.ipy").write_text("%load_ext jupyter_gpushare\n%run job.ipy\n%gpushare quota\n")
    run = [sys.executable, "-m", "jupyter_gpushare", "run", "--", sys.executable, "-m", "IPython", "then.ipy"]
    env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    quotas = [line for line in done.stdout.splitlines() if line.startswith("Quota")]
    assert len(quotas) == 2, done
    assert "share 0.3" in quotas[0] and "class offline" in quotas[0]
    assert "share 0," in quotas[1] and "class online" in quotas[1]


def test_the_line_is_rewritten_and_nothing_else() -> None:
    for lines in ([], ["%%gpushares a\n", "1\n"], ["x = 1\n", "%%gpushare a=1\n", "2\n"], ["%%time\n", "1\n"]):
        assert transform(list(lines)) == lines
    first, *rest = transform(["%%gpushare share='0.3'\n", "1\n", "\n", "2\n"])
    assert json.dumps("share='0.3'") in first and rest == ["1\n", "\n", "2\n"]
