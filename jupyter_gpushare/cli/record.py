"""Command `jupyter gpushare record FILE`, which writes a trace for `simulate` from a coordinator's snapshots."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import Any

from ..config.arguments import describe_file_failure, number
from ..wire.client import Client, CoordinatorError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("file", help="file for the trace (JSON lines, see docs/explanation/simulator.md)")
    parser.add_argument(
        "--seconds", type=number(0.001, 1e9), default=None, help="length of the recording (default: until interrupted)"
    )
    parser.add_argument("--socket", default="", help="the coordinator's socket")


def main(args: argparse.Namespace) -> int:
    """Record the trace. Return 0, or 1 if no coordinator answers, the connection ends or the file cannot be written.

    A recording that ends with an error is still written if it has a snapshot.
    """
    from ..simulation.workloads import traces
    from ..simulation.workloads.recorder import Recorder

    recorder = Recorder()
    status = 0
    snapshot_count = 0
    try:
        open(args.file, "ab").close()  # fails before the recording instead of after it
        with Client(args.socket) as client:
            for snapshot in client.subscribe():
                recorder.on_snapshot(snapshot, time.monotonic())
                snapshot_count += 1
                if snapshot_count == 1:
                    print(f"recording to {args.file}; Ctrl-C ends the recording", file=sys.stderr)
                    if args.seconds is not None:
                        # A timer ends the recording even if the coordinator sends no more snapshots.
                        signal.signal(signal.SIGALRM, _on_timeout)
                        signal.setitimer(signal.ITIMER_REAL, args.seconds)
    except (KeyboardInterrupt, _LimitReached):
        pass
    except (CoordinatorError, ValueError, OSError) as error:
        status = _report_failure(error)
    signal.setitimer(signal.ITIMER_REAL, 0)
    if snapshot_count:
        recorder.advance(time.monotonic())
        lines = list(recorder.lines())
        try:
            traces.write(args.file, lines)
        except OSError as error:
            return _report_failure(error)
        cells = sum(isinstance(line, traces.CellLine) for line in lines)
        print(f"{cells} cells of {sum(isinstance(line, traces.ClientLine) for line in lines)} clients", file=sys.stderr)
    return status


def _report_failure(error: Exception) -> int:
    text = describe_file_failure(error) if isinstance(error, OSError) else error
    print(f"jupyter gpushare record: {text}", file=sys.stderr)
    return 1


class _LimitReached(Exception):
    """End of the time `--seconds`."""


def _on_timeout(*_: Any) -> None:
    raise _LimitReached
