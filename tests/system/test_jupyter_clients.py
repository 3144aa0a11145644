"""Tests of several front ends, as users start them: the kernel is a client with the right label and gets a turn."""

from __future__ import annotations

import subprocess
import sys

import nbformat
import pytest

from ..support import tier
from .notebook_client import SETUP
from .system_host import SystemHost, wait_until

CELLS = [SETUP, "check(cuda.alloc(1 << 20)[0]); work(0.02)", "while not os.path.exists('go'): time.sleep(0.01)"]
MAX_SECONDS = 45.0  # for a Python that starts, runs three cells and ends, on a busy machine
EXECUTE = ["-c", "from nbclient.cli import main; main()", "--kernel_name={kernel}", "work.ipynb"]  # jupyter execute

FRONT_ENDS = {
    "nbclient": (EXECUTE, "python3-gpushare"),
    "papermill": (["-m", "papermill", "-k", "{kernel}", "work.ipynb", "done.ipynb"], "python3-gpushare"),
    "console": (["-m", "jupyter_console", "--simple-prompt", "--kernel={kernel}"], "python3-gpushare"),
    "stock kernel": (EXECUTE, "python3"),
    "launcher only": (EXECUTE, "launched"),
}
SHORT_FRONT_ENDS = {"nbclient", "stock kernel"}
NAMED = "a folder/my notebook.ipynb"


def has_allocated(host: SystemHost) -> bool:
    return any(client["allocated"] >= 1 << 20 for client in host.clients().values())


@pytest.mark.parametrize(
    "session", [pytest.param("", id="unnamed", marks=pytest.mark.nightly), pytest.param(NAMED, id="named")]
)
@pytest.mark.parametrize(
    "name", [*sorted(SHORT_FRONT_ENDS), *tier.nightly(sorted(FRONT_ENDS.keys() - SHORT_FRONT_ENDS))]
)
def test_jupyter_client_starts_a_shared_kernel(default_settings_host: SystemHost, name: str, session: str) -> None:
    words, kernel = FRONT_ENDS[name]
    more = {"JPY_SESSION_NAME": session} if session else {}
    if kernel == "launched":
        kernel = default_settings_host.launcher_spec()
    if kernel == "python3":
        more["JUPYTER_DEFAULT_PROVISIONER_NAME"] = "gpushare-provisioner"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nbformat.write(notebook, default_settings_host.folder / "work.ipynb")
    argv = [sys.executable, *(word.format(kernel=kernel) for word in words)]
    with subprocess.Popen(
        argv,
        env=default_settings_host.environment(**more),
        cwd=default_settings_host.folder,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdin and process.stdout
        try:
            if name == "console":
                process.stdin.write("".join(f"exec({cell!r})\n" for cell in CELLS) + "exit\n")
            process.stdin.close()
            wait_until(lambda: has_allocated(default_settings_host) or process.poll() is not None, MAX_SECONDS)
            assert process.poll() is None, process.stdout.read()
            (client,) = default_settings_host.clients().values()
            label = "my notebook.ipynb" if session else "ipykernel_launcher" if name == "launcher only" else kernel
            assert client["label"] == label
            assert client["turn_count"] >= 1
            assert len(client["processes"]) == 1
            wait_until(lambda: [one["cells"] for one in default_settings_host.clients().values()] == [1])
            (default_settings_host.folder / "go").touch()
            assert process.wait(MAX_SECONDS) == 0, process.stdout.read()
        finally:
            process.kill()
    if name not in ("launcher only", "console"):  # these front ends do not report that the kernel has ended for good
        wait_until(lambda: default_settings_host.clients() == {})
    wait_until(lambda: all(client["processes"] == [] for client in default_settings_host.clients().values()))
