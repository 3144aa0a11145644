"""Check of `jupyter gpushare doctor` on the cluster daemon that chooses nodes for the Jupyter servers of this host."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from traitlets import TraitError

from ... import __version__
from ...cluster.daemon.messages import ClusterState, ClusterStatus
from ...cluster.settings import GpuShareCluster
from ...wire.client import Client, CoordinatorError, Unreachable
from .finding import Finding

_SUBJECT = "cluster daemon"
_ANSWER_SECONDS = 3.0


def daemon() -> Iterator[Finding]:
    """Yield findings about the daemon of `c.GpuShareCluster.daemon`, and none without that setting."""
    try:
        settings = GpuShareCluster.from_files()
    except TraitError as error:
        yield Finding("error", _SUBJECT, str(error), "correct c.GpuShareCluster in jupyter_server_config")
        return
    if not settings.daemon:
        return
    try:
        with Client(settings.daemon, _ANSWER_SECONDS) as client:
            state = msgspec.convert(client.request(ClusterStatus()), ClusterState)
    except Unreachable as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        message = f"no cluster daemon answers at {settings.daemon}, so each server chooses nodes by itself: {reason}"
        yield Finding("warning", _SUBJECT, message, "jupyter gpushare cluster (docs/how-to/cluster-daemon.md)")
        return
    except (CoordinatorError, msgspec.ValidationError) as error:
        message = f"the cluster daemon at {settings.daemon} does not send its state: {error}"
        yield Finding("warning", _SUBJECT, message, "restart the daemon, which needs no state")
        return
    names = [node.name for node in state.nodes]
    version = f"version {state.version}" if state.version else "an unknown version"
    yield Finding("ok", _SUBJECT, f"{version} at {settings.daemon}, for the nodes {', '.join(names)}")
    if state.version != __version__:
        message = f"{version} of the daemon differs from version {__version__} of this package"
        yield Finding("warning", _SUBJECT, message, "restart the daemon, which needs no state")
    if unknown := [node for node in settings.all_nodes if node not in names]:
        message = f"the daemon does not know {', '.join(unknown)}, so these nodes get no clients from it"
        yield Finding("warning", _SUBJECT, message, "restart the daemon with the present c.GpuShareCluster.nodes")
    for node in state.nodes:
        if node.message:
            message = f"{node.name} gets no clients: {node.message}"
            yield Finding("warning", _SUBJECT, message, f"jupyter gpushare doctor --node {node.name}")
