"""`jupyter gpushare record FILE`: a trace for `simulate`, from what a live coordinator tells."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import Any

from ..config.arguments import number
from ..wire.client import Client, CoordinatorError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Called by the command line on the parser of the `record` sub-command."""
    parser.add_argument("file", help="where to write it (JSON lines, see docs/explanation/simulator.md)")
    parser.add_argument(
        "--seconds", type=number(0.001, 1e9), default=None, help="for how long (default: until interrupted)"
    )
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """0, or 1 when no coordinator answers or the file cannot be written. What was seen is written in any case."""
    from ..simulation.workloads import traces
    from ..simulation.workloads.recorder import Recorder

    recorder = Recorder()
    status = 0
    seen = 0
    try:
        open(args.file, "ab").close()  # found out now, not in an hour
        with Client(args.socket) as client:
            if args.seconds is not None:  # also when nothing happens that the coordinator would tell of
                signal.signal(signal.SIGALRM, _on_timeout)
                signal.setitimer(signal.ITIMER_REAL, args.seconds)
            print(f"recording to {args.file}; Ctrl-C ends it", file=sys.stderr)
            for snapshot in client.subscribe():
                recorder.on_snapshot(snapshot, time.monotonic())
                seen += 1
    except (KeyboardInterrupt, _LimitReached):
        pass
    except (CoordinatorError, ValueError, OSError) as error:
        print(f"jupyter gpushare record: {error}", file=sys.stderr)
        status = 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    if seen:
        recorder.advance(time.monotonic())
        lines = list(recorder.lines())
        traces.write(args.file, lines)
        cells = sum(isinstance(line, traces.CellLine) for line in lines)
        print(f"{cells} cells of {sum(isinstance(line, traces.ClientLine) for line in lines)} clients", file=sys.stderr)
    return status


class _LimitReached(Exception):
    """The time is over."""


def _on_timeout(*_: Any) -> None:
    raise _LimitReached
