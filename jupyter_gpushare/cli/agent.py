"""Command `jupyter gpushare agent`: the node agent, which engines start on nodes."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments, because a Jupyter server sends requests by the standard input."""


def main(args: argparse.Namespace) -> int:
    """Serve until the end of the standard input. Return 2 if the input is not that of a Jupyter server."""
    from ..cluster import node_agent

    return node_agent.main()
