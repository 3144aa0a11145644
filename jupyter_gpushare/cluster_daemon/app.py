"""Command `jupyter gpushare cluster`: runs the cluster daemon, or shows the state of the one that runs.

The daemon owns no truth. Each node decides about its clients, and a daemon that starts learns their state from them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

import msgspec
from traitlets import TraitError

from ..cluster.daemon.messages import ClusterState, ClusterStatus
from ..cluster.node_connection import CONNECTIONS
from ..cluster.settings import GpuShareCluster
from ..config.traits import GpuShare
from ..coordinator.config.tenant_lookup import TenantLookup
from ..coordinator.rpc.acceptor import ConnectionAcceptor
from ..coordinator.transport.listen_sockets import SocketSet, inherited_sockets
from ..coordinator.transport.peer_identity import PeerIdentifier
from ..core.base.errors import Refused
from ..core.cluster.cluster_placement import ClusterPlacement
from ..core.placement import PlacementSettings
from ..wire import address
from ..wire.client import Client, CoordinatorError, Unreachable
from .node_watch import NodeWatch
from .requests import ClusterRequests

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the sub-command `cluster` to its parser."""
    parser.add_argument("--status", action="store_true", help="show the nodes as the running daemon knows them")
    parser.add_argument(
        "--system", action="store_true", help="serve all users of this host, instead of the user of the daemon"
    )


def main(args: argparse.Namespace) -> int:
    """Run the daemon until SIGTERM or SIGINT. Return 2 for settings without a meaning."""
    try:
        settings = GpuShareCluster.from_files()
        if not settings.daemon:
            raise ValueError("c.GpuShareCluster.daemon in jupyter_server_config names no socket")
        if args.status:
            return _print_status(settings.daemon)
        tenants = TenantLookup(settings.tenants)
        placement = ClusterPlacement(
            PlacementSettings(strategy=settings.placement, tenants=tuple(tenants.tenants)), settings.start_seconds
        )
        traits = GpuShare(coordinator=settings.daemon)
        sockets = SocketSet(traits, args.system, inherited_sockets())
        sockets.prepare()
        if not sockets.acquire(wait=0.0):
            raise ValueError(f"another cluster daemon runs at {sockets.path}")
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        asyncio.run(_serve(settings, tenants, placement, traits, sockets))
    except (CoordinatorError, OSError, Refused, TraitError, ValueError, address.BadAddress) as error:
        print(f"jupyter gpushare cluster: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(
    settings: GpuShareCluster,
    tenants: TenantLookup,
    placement: ClusterPlacement,
    traits: GpuShare,
    sockets: SocketSet,
) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    acceptor = ConnectionAcceptor(ClusterRequests(placement, tenants), PeerIdentifier(traits), lambda: traits)
    watch = NodeWatch(placement, settings, tenants.tenant_of)
    watch.start()
    sockets.open()
    for listener, user in sockets.listeners.items():
        acceptor.listen(listener, user)
    log.info("choosing among %s for servers at %s", ", ".join(settings.all_nodes), sockets.path)
    try:
        await stopped.wait()
    finally:
        acceptor.close()
        sockets.remove()
        await watch.close()
        await asyncio.to_thread(CONNECTIONS.close)


def _print_status(path: str) -> int:
    try:
        with Client(path) as daemon:
            state = msgspec.convert(daemon.request(ClusterStatus()), ClusterState)
    except Unreachable:
        raise ValueError(f"no cluster daemon answers at {path}") from None
    for node in state.nodes:
        numbers = f"{node.devices} devices, {node.clients} clients, {node.bookings} bookings"
        print(f"{node.name}: {node.message or numbers}")
    for tenant, number in state.missing_cells.items():
        print(f"tenant {tenant}: no node has come for {number} of its guaranteed cells")
    return 0
