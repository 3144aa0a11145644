"""Tests of the sentences that pages get for failed requests about kernels on nodes."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jupyter_gpushare.cluster import kernel_records

from .conftest import JupyterServer, separate_nodes, write_kernelspec


class Failure(NamedTuple):
    """Answer to a failed request."""

    status: int
    reason: str
    message: str


def failure(server: JupyterServer, path: str, body: Any = None) -> Failure:
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.request("POST", path, body or {})
    with refused.value as error:
        answer = json.loads(error.read())
        return Failure(error.code, answer["reason"], answer["message"])


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("share", {"share": -1}, "RemoteProvisioner.share: share=-1 is out of range: allowed is a fraction"),
        ("memory", {"memory": "-5"}, "RemoteProvisioner.memory: memory=-5 is out of range"),
        ("node", {"node": "-oProxyCommand=x"}, "RemoteProvisioner.node: '-oProxyCommand=x' is no name of a node"),
        ("gpus", {"gpus": 0}, "'gpus'"),
    ],
)
def test_an_invalid_kernelspec_is_named(
    server: JupyterServer, name: str, options: dict[str, Any], sentence: str
) -> None:
    write_kernelspec(server.folder, name, **options)
    found = failure(server, "kernels", {"name": name})
    assert (found.status, found.reason, sentence in found.message) == (500, "invalid_setting", True), found
    assert "\n" not in found.message


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"engine": "teleport"}, "GpuShareCluster.engine: 'teleport' is neither one of local, ssh, slurm"),
        ({"placement": "best"}, "any of ['spread', 'pack', 'fgd']"),
    ],
)
def test_an_invalid_setting_of_the_server_is_named(
    start_server: Callable[..., JupyterServer], settings: dict[str, Any], sentence: str
) -> None:
    found = failure(start_server(**settings), "kernels", {"name": "remote"})
    assert (found.status, found.reason, sentence in found.message) == (500, "invalid_setting", True), found


def test_an_interrupt_names_the_node_that_does_not_answer(
    start_server: Callable[..., JupyterServer], tmp_path: Path
) -> None:
    server = start_server(**separate_nodes(tmp_path))
    kernel = server.request("POST", "kernels", {"name": "remote"})["id"]
    record = kernel_records.load(kernel)
    assert record is not None
    (tmp_path / f"{record.node}.lost").touch()
    for pid in server.children("jupyter_gpushare"):
        os.kill(pid, signal.SIGKILL)
    found = failure(server, f"kernels/{kernel}/interrupt")
    assert (found.status, found.message) == (503, f"the node agent on {record.node} has ended: no route to the host")
    (tmp_path / f"{record.node}.lost").unlink()
    server.request("DELETE", f"kernels/{kernel}")
