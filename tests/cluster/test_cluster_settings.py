"""Tests of the traits of `c.GpuShareCluster`."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from traitlets import TraitError

from jupyter_gpushare.cluster.settings import ENGINES, GpuShareCluster

AGENT = [f"{sys.prefix}/bin/python", "-m", "jupyter_gpushare", "agent"]


def test_the_default_is_this_host() -> None:
    settings = GpuShareCluster()
    assert settings.all_nodes == ["localhost"]
    assert settings.command("localhost") == AGENT
    assert settings.address("localhost") == "127.0.0.1"


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_runs_the_agent_of_the_prefix_on_the_node(engine: str) -> None:
    command = GpuShareCluster(engine=engine, prefix="/opt/my env").command("gpu7")
    assert engine == "local" or any("gpu7" in word for word in command)
    if engine == "ssh":  # ssh joins the words for the shell of the node
        assert command[-1] == "'/opt/my env/bin/python' -m jupyter_gpushare agent"
    else:
        assert command[-4:] == ["/opt/my env/bin/python", *AGENT[1:]]


@pytest.mark.parametrize("engine", [*ENGINES, "false {node} {agent}"])
def test_this_host_needs_no_engine_beside_other_nodes(engine: str) -> None:
    settings = GpuShareCluster(engine=engine, nodes=["localhost", "gpu7"])
    assert settings.command("localhost") == AGENT
    assert settings.address("localhost") == "127.0.0.1"


def test_a_command_of_ones_own_is_an_engine() -> None:
    settings = GpuShareCluster(engine="lsrun -m {node} env A='1 2' {agent}")
    assert settings.command("gpu7") == ["lsrun", "-m", "gpu7", "env", "A=1 2", *AGENT]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"engine": "kubernetes"}, "neither one of local, ssh, slurm, kubectl, ray nor a command with"),
        ({"engine": "ssh {node}"}, "nor a command with"),
        ({"engine": "ssh {host} {agent}"}, "nor a command with"),
        ({"nodes": ["gpu1", "-oProxyCommand=x"]}, "'-oProxyCommand=x' is no name of a node"),
        ({"nodes": [""]}, "'' is no name of a node"),
        ({"nodes": ["gpu1", "all"]}, "'all' is no name of a node: the option --node means all nodes by it"),
        ({"nodes": ["gpu1", "gpu2", "gpu1"]}, "'gpu1' is there more than once: allowed is each name once"),
        ({"ports": "80-90"}, "'80-90' is no range of ports: allowed are FIRST-LAST, from 1024 to 65535"),
        ({"ports": "40000"}, "is no range of ports"),
        ({"ports": "5000-4000"}, "is no range of ports"),
        ({"orphan_timeout": "soon"}, "'soon' is not a duration"),
        ({"start_timeout": "-1"}, "'-1' is not a duration"),
        ({"room_timeout": "soon"}, "'soon' is not a duration"),
        ({"start_timeout": "0s"}, "start_timeout: '0s' leaves no time for a start: allowed is a duration above 0"),
    ],
)
def test_an_invalid_value_is_refused_with_the_allowed_ones(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(TraitError, match=complaint):
        GpuShareCluster(**values)
