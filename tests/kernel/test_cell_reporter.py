"""Tests of the reports of cells, mostly by real kernels."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

# The kernel's connection with the coordinator, as an expression in a cell.
CONNECTION = "__import__('sys').modules['_gpushare_kernel.session'].active_session.connection"


@pytest.fixture
def notebook(recorder: Any, start: Any, wait_until: Any) -> Any:
    notebook = start()
    wait_until(lambda: recorder.attached)
    notebook.run("pass")
    wait_until(lambda: recorder.cells and not recorder.open)
    recorder.cells.clear()
    return notebook


def test_the_kernel_attaches_as_its_client(recorder: Any, notebook: Any) -> None:
    (attach,) = recorder.attached
    assert attach.client == notebook.manager.kernel_id and len(attach.token) >= 32
    assert attach.label == "python3-gpushare"


def test_run_all_is_reported_cell_by_cell(recorder: Any, notebook: Any, wait_until: Any) -> None:
    requests = [notebook.send(f"x = {number}") for number in range(50)]
    notebook.reply_to(requests[-1])
    wait_until(lambda: len(recorder.cells) == 100)
    assert recorder.cells == [(state, request) for request in requests for state in ("start", "end")]


@pytest.mark.parametrize(("sent", "reported"), [("4ad0f3b1", "4ad0f3b1"), (None, ""), (7, ""), ("x" * 2000, "")])
def test_cell_report_has_the_cell_id_of_the_request(
    recorder: Any, notebook: Any, wait_until: Any, sent: Any, reported: str
) -> None:
    content = {"code": "pass", "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    metadata = {} if sent is None else {"cellId": sent}
    message = notebook.kernel.session.msg("execute_request", content, metadata=metadata)
    notebook.kernel.shell_channel.send(message)
    request = message["header"]["msg_id"]
    wait_until(lambda: ("end", request) in recorder.cells)
    assert recorder.cell_ids[request] == reported


def test_cell_report_has_a_hash_of_the_text(recorder: Any, notebook: Any, wait_until: Any) -> None:
    """Two runs of one text have the same hash, and the text itself does not leave the kernel."""
    requests = [notebook.send(code) for code in ("secret = 1", "secret = 2", "secret = 1")]
    notebook.reply_to(requests[-1])
    wait_until(lambda: len(recorder.cells) == 6)
    first, other, again = (recorder.text_hashes[request] for request in requests)
    assert first == again != other
    assert len(first) == 16 and not any("secret" in text for text in (first, other))


@pytest.mark.parametrize(
    "code",
    ["1/0", "syntax error here", "%no_such_magic", "import asyncio; await asyncio.sleep(0); 1/0", "raise SystemExit"],
)
def test_cells_that_fail_end(recorder: Any, notebook: Any, wait_until: Any, code: str) -> None:
    request = notebook.send(code, stop_on_error=False)
    assert notebook.reply_to(request)["status"] == "error"
    wait_until(lambda: recorder.cells == [("start", request), ("end", request)])


def test_requests_that_were_aborted_are_never_reported(
    recorder: Any, notebook: Any, wait_until: Any, tmp_path: Path
) -> None:
    failing = notebook.send("import os, time\nwhile not os.path.exists('sent'): time.sleep(0.01)\ntime.sleep(0.2); 1/0")
    aborted = notebook.send("2")
    (tmp_path / "sent").touch()
    assert notebook.reply_to(aborted)["status"] == "aborted"
    wait_until(lambda: ("end", failing) in recorder.cells)
    assert aborted not in {request for _, request in recorder.cells}


def test_a_nested_run_is_part_of_its_request(recorder: Any, notebook: Any, wait_until: Any) -> None:
    request = notebook.send("get_ipython().run_cell('1'); get_ipython().run_cell('1/0')")
    assert notebook.reply_to(request)["status"] == "ok"
    wait_until(lambda: recorder.cells == [("start", request), ("end", request)])


def test_silent_requests_and_user_expressions_are_reported(
    recorder: Any, notebook: Any, wait_until: Any, tmp_path: Path
) -> None:
    silent = notebook.send("y = 1", silent=True)
    notebook.reply_to(silent)
    # Before the start of the code, IPython handles an interrupt as one for its own callbacks.
    slow = "open('inside', 'w').close() or any(map(__import__('time').sleep, __import__('itertools').repeat(0.05)))"
    evaluated = notebook.send("", user_expressions={"slow": slow})
    wait_until((tmp_path / "inside").exists)
    wait_until(lambda: recorder.open == [evaluated])
    notebook.manager.interrupt_kernel()
    notebook.reply_to(evaluated)
    wait_until(lambda: recorder.cells == [(s, r) for r in (silent, evaluated) for s in ("start", "end")])


@pytest.mark.parametrize("code", ["while True: pass", "import asyncio; await asyncio.sleep(600)"])
def test_an_interrupted_cell_ends(recorder: Any, notebook: Any, wait_until: Any, tmp_path: Path, code: str) -> None:
    request = notebook.send(f"open('inside', 'w').close()\n{code}")
    wait_until((tmp_path / "inside").exists)
    notebook.manager.interrupt_kernel()
    # ipykernel notices the interrupt of an await with the next message, and does not reply to that message.
    notebook.kernel.kernel_info()
    wait_until(lambda: recorder.cells == [("start", request), ("end", request)])
    assert notebook.value("1 + 1") == 2


def test_subshells_overlap(recorder: Any, notebook: Any, wait_until: Any) -> None:
    subshell = notebook.subshell()
    main = notebook.send("import time\nwhile not globals().get('done'): time.sleep(0.01)")
    wait_until(lambda: recorder.open == [main])
    sub = notebook.send_to(subshell, "done = True")
    notebook.reply_to(main)
    wait_until(lambda: not recorder.open and len(recorder.cells) == 4)
    assert recorder.cells[:2] == [("start", main), ("start", sub)]
    assert {("end", main), ("end", sub)} == set(recorder.cells[2:])


def test_new_coordinator_gets_the_running_cells(recorder: Any, notebook: Any, wait_until: Any, tmp_path: Path) -> None:
    request = notebook.send("open('inside', 'w').close()\nwhile True: pass")
    wait_until((tmp_path / "inside").exists)
    wait_until(lambda: recorder.open == [request])
    recorder.disconnect()
    wait_until(lambda: len(recorder.attached) == 2 and recorder.open == [request])
    notebook.manager.interrupt_kernel()
    wait_until(lambda: recorder.cells[-2:] == [("start", request), ("end", request)])


def test_new_coordinator_gets_the_cells_that_ended_meanwhile(recorder: Any, notebook: Any, wait_until: Any) -> None:
    """A new coordinator may have adopted the turn of the cell, and would wait for the end of the cell."""
    request = notebook.send(f"while {CONNECTION}._socket is not None: pass")
    wait_until(lambda: recorder.open == [request])
    aside = Path(recorder.path).rename(f"{recorder.path}.aside")  # no coordinator answers until the cell has ended
    recorder.disconnect()
    notebook.reply_to(request)
    notebook.kernel.kernel_info(reply=True, timeout=60)  # follows the end of the cell, which follows its reply
    aside.rename(recorder.path)
    wait_until(lambda: len(recorder.attached) == 2 and recorder.cells == [("end", request)])


def test_new_coordinator_gets_the_last_end_again(recorder: Any, notebook: Any, wait_until: Any) -> None:
    """The earlier coordinator may have exited before it read the end."""
    request = notebook.send("pass")
    wait_until(lambda: recorder.cells == [("start", request), ("end", request)])
    recorder.disconnect()
    wait_until(lambda: len(recorder.attached) == 2 and recorder.cells == [("end", request)])


def test_new_coordinator_gets_a_running_cell_with_a_used_id(recorder: Any, notebook: Any, wait_until: Any) -> None:
    """The ids of the reports by events of IPython begin again after each cell."""
    connection = f"connection = {CONNECTION}"
    reports = "connection.begin('x'); connection.end('x'); connection.begin('x')"
    request = notebook.send(f"{connection}; {reports}; import time; time.sleep(600)")
    wait_until(lambda: len(recorder.cells) == 4)
    recorder.disconnect()
    wait_until(lambda: len(recorder.attached) == 2 and sorted(recorder.open) == sorted([request, "x"]))


def test_a_forked_child_is_not_the_kernel(recorder: Any, notebook: Any, wait_until: Any) -> None:
    # The child outlives the kernel, and must neither keep the connection open nor report cells.
    notebook.run("import os, signal, time\nchild = os.fork()\nif child == 0:\n    time.sleep(600)\n    os._exit(0)")
    child = notebook.value("child")
    try:
        os.kill(notebook.pid, signal.SIGKILL)
        wait_until(lambda: recorder.ended == 1)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_hanging_coordinator_does_not_delay_cells(
    coordinator: Any, start: Any, wait_until: Any, tmp_path: Path
) -> None:
    notebook = start()
    client = notebook.manager.kernel_id
    end = tmp_path / "end"
    notebook.kernel.execute(f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(0.01)")
    wait_until(lambda: coordinator.clients()[client]["cells"] == 1)
    coordinator.send(signal.SIGSTOP)
    end.touch()
    # The loop sends far more reports than the socket's buffer can hold, and a stopped coordinator reads none.
    code = """
    import sys, time
    connection = sys.modules["_gpushare_kernel.session"].active_session.connection
    def report():
        began = time.perf_counter()
        connection.begin("x")
        connection.end("x")
        return time.perf_counter() - began
    seconds = sorted(report() for _ in range(3000))
    """
    assert notebook.run(textwrap.dedent(code)).status == "ok"
    assert notebook.value("seconds[-1]") < 15.0, "a report would wait for ever"
    assert notebook.value("seconds[-10]") < 0.5  # a busy machine delays a few reports
    coordinator.send(signal.SIGCONT)
    notebook.kernel.execute("time.sleep(600)")
    wait_until(lambda: coordinator.clients()[client]["cells"] == 1, 60)


def test_reports_add_little_time_to_a_cell(notebook: Any) -> None:
    notebook.run("import sys, timeit; from time import thread_time")
    notebook.run("a = sys.modules['_gpushare_kernel.session'].active_session.connection")
    microseconds = notebook.value(
        "min(timeit.repeat(lambda: (a.begin('x'), a.end('x')), number=200, repeat=5, timer=thread_time)) / 4e-4"
    )
    assert microseconds < 100


def test_without_ipykernel_events_of_ipython_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns of another environment than that of the tests
    from jupyter_gpushare.kernel import cell_reporter

    reports: list[tuple[str, str]] = []

    class FakeConnection:
        def begin(self, request: str) -> None:
            reports.append(("start", request))

        def end(self, request: str) -> None:
            reports.append(("end", request))

    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    cell_reporter.install(shell, FakeConnection())  # type: ignore[arg-type]
    shell.run_cell("get_ipython().run_cell('1')")
    shell.run_cell("pass", silent=True)
    assert [state for state, _ in reports] == ["start", "start", "end", "end"]
    assert reports[1:3] == [("start", reports[1][1]), ("end", reports[1][1])]


def test_foreign_message_ids_are_converted_for_the_protocol() -> None:
    from jupyter_gpushare.kernel import cell_reporter

    assert cell_reporter.request_id({"header": {"msg_id": "a b/ü"}}) == "a-b--"
    assert len(cell_reporter.request_id({"header": {"msg_id": "x" * 500}})) == 128
    assert cell_reporter.request_id(None) == cell_reporter.request_id({"header": {"msg_id": ""}}) == "unnamed"
