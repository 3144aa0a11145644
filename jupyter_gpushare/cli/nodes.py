"""Option `--node NODE`, with which a command runs on a node of `c.GpuShareCluster` instead of this host.

The engine that starts node agents runs the command there, with the standard streams of this process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_NODE_SECONDS = 60.0  # for each of several nodes
HELP = "run the command on this node of c.GpuShareCluster, or on 'all' of them, instead of this host"
# Commands about the clients and the devices of one host.
COMMANDS = (
    *("status", "usage", "config", "quota", "hold", "release", "evict", "move", "suspend", "resume", "device"),
    "doctor",
)
_NODE_WORDS = {"doctor": ["--as-node"]}  # of the command on the node, in addition


def take_node(words: list[str]) -> str | None:
    """Remove the option from the words of a command line, and return its value, or None without the option."""
    if not words or words[0] not in COMMANDS:
        return None
    for at, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("--node="):
            del words[at]
            return word.removeprefix("--node=")
        if word == "--node" and at + 1 < len(words):
            del words[at]
            return words.pop(at)
    return None


def run_on_nodes(node: str, words: Sequence[str]) -> int:
    """Run a command on a node, or on all nodes at the same time. Return the largest exit status."""
    from traitlets import TraitError

    from ..cluster.settings import ALL_NODES, GpuShareCluster

    try:
        settings = GpuShareCluster.from_files()
        nodes = settings.all_nodes if node == ALL_NODES else [node]
        if unknown := set(nodes) - set(settings.all_nodes):
            raise ValueError(
                f"{unknown.pop()!r} is not in c.GpuShareCluster.nodes: allowed are {', '.join(settings.all_nodes)} "
                f"and {ALL_NODES}"
            )
        if node == ALL_NODES and "--watch" in words:
            raise ValueError(f"--watch needs one node: allowed are {', '.join(settings.all_nodes)}")
    except (TraitError, ValueError) as error:
        print(f"jupyter gpushare {words[0]}: {error}", file=sys.stderr)
        return 2
    words = [*words, *_NODE_WORDS.get(words[0], ())]
    if node != ALL_NODES:
        return _run(settings.command(node, words), words[0])
    with ThreadPoolExecutor(len(nodes)) as threads:
        results = list(threads.map(lambda one: _run_captured(settings.command(one, words)), nodes))
    if "--json" in words:
        print(json.dumps({one: _content(done) for one, done in zip(nodes, results, strict=True)}, indent=2))
    for one, done in zip(nodes, results, strict=True):
        if "--json" not in words:
            print("\n".join([f"--- {one}", *done.stdout.splitlines()]), flush=True)
        if done.stderr:
            print(f"{one}: {done.stderr}", end="", file=sys.stderr, flush=True)
    return max(done.returncode for done in results)


def _run_captured(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command, and return its end and its output, also for a command that cannot be run or does not end."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_NODE_SECONDS,
            check=False,
        )
    except OSError as error:
        problem = f"the engine cannot run {command[0]}: {error.strerror}\n"
    except subprocess.TimeoutExpired:
        problem = f"no answer within {_NODE_SECONDS:g} s\n"
    return subprocess.CompletedProcess(command, 1, "", problem)


def _content(done: subprocess.CompletedProcess[str]) -> Any:
    """Return what the command has printed as JSON; None: it has failed."""
    try:
        return json.loads(done.stdout)
    except ValueError:
        return None


def _run(command: Sequence[str], name: str) -> int:
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        print(f"jupyter gpushare {name}: the engine cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 1
