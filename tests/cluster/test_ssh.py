"""Test of a kernel on a node that ssh reaches, with a real sshd. The test is skipped where sshd is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.cluster.channel.messages import NodeError
from jupyter_gpushare.cluster.node_connection import CONNECTIONS

from ..support.polling import wait_until
from ..support.ports import free_port
from .conftest import RemoteNotebook

Start = Callable[..., RemoteNotebook]
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(not (SSHD and shutil.which("ssh")), reason="needs ssh and sshd")


@pytest.fixture
def client_configuration(tmp_path: Path) -> Iterator[Path]:
    """Start an sshd that admits the user of the tests by a key, and yield the configuration of its client."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    port = free_port()
    server = tmp_path / "sshd_config"
    server.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
    )
    client = tmp_path / "ssh_config"
    client.write_text(
        f"Host node1\nHostName 127.0.0.1\nPort {port}\nIdentityFile {tmp_path}/user\nStrictHostKeyChecking no\n"
        f"UserKnownHostsFile {tmp_path}/known\nLogLevel ERROR\n"
    )
    os.makedirs("/run/sshd", exist_ok=True)
    assert SSHD
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", server], stderr=subprocess.DEVNULL)
    wait_until(lambda: subprocess.run(["ssh", "-F", client, "node1", "true"], check=False).returncode == 0)
    yield client
    process.terminate()
    process.wait()


def engine(configuration: Path, **variables: str) -> str:
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    return f"ssh -F {configuration} -T -o BatchMode=yes {{node}} env {words} {{quoted_agent}}"


def test_a_kernel_starts_outlives_its_connection_and_ends(
    start_notebook: Start, client_configuration: Path, state: Path
) -> None:
    names = ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "GPUSHARE_LOCK_DIR", "GPUSHARE_SIM_STATE")
    by_ssh = engine(client_configuration, **{name: os.environ[name] for name in names})
    notebook = start_notebook("node1", engine=by_ssh, nodes=["node1"], addresses={"node1": "127.0.0.1"})
    notebook.run("x = 41")
    for connection in CONNECTIONS.present():
        connection.close()
    assert notebook.value("x + 1") == 42
    notebook.interrupt_an_endless_cell()
    assert notebook.value("__import__('os').environ['GPUSHARE_CLIENT']") == notebook.manager.kernel_id
    assert notebook.value("__import__('sys').prefix") == sys.prefix
    notebook.manager.shutdown_kernel()


def test_a_refused_login_is_the_sentence_of_ssh(start_notebook: Start, client_configuration: Path) -> None:
    (client_configuration.parent / "authorized").write_text("")
    with pytest.raises(NodeError, match="Permission denied"):
        start_notebook("node1", engine=engine(client_configuration), nodes=["node1"], addresses={"node1": "127.0.0.1"})
