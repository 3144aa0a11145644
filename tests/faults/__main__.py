"""Command `python -m tests.faults`, which runs many seeds, or one seed again (`--seed N`)."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time

from .episode import CHECK_EVERY_EVENTS, Episode
from .moves import EpisodeWithMoves


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--first", type=int, default=0, help="the first of many seeds")
    parser.add_argument("--events", type=float, default=1e5, help="number of events, with as many seeds as necessary")
    parser.add_argument(
        "--every",
        type=int,
        default=CHECK_EVERY_EVENTS,
        help="events of the coordinator between two checks of its state",
    )
    parser.add_argument("--kinds", help="only these faults, separated by commas")
    parser.add_argument("--moves", action="store_true", help="let clients move to other devices and hibernate")
    parser.add_argument("--log", action="store_true", help="print the events of each seed, even without a failure")
    options = parser.parse_args()
    kinds = tuple(options.kinds.split(",")) if options.kinds else None
    failed = events = turns = coordinators = 0
    longest = 0.0
    with tempfile.TemporaryDirectory(prefix="gpushare-locks-") as folder:
        os.environ["GPUSHARE_LOCK_DIR"] = folder
        began = time.perf_counter()
        seed = options.first if options.seed is None else options.seed
        while True:
            episode = (EpisodeWithMoves if options.moves else Episode)(seed, kinds, options.every)
            outcome = episode.run()
            if outcome.failure or options.log:
                print(outcome.failure or "\n".join(f"{at:.6f} {what}" for at, what in episode.host.event_log))
            failed += bool(outcome.failure)
            events += outcome.events
            turns += outcome.turns
            coordinators += outcome.coordinators
            longest = max(longest, outcome.longest_wait)
            seed += 1
            if options.seed is not None or events >= options.events:
                break
    seconds = time.perf_counter() - began
    print(
        f"{events} events ({events / seconds:.0f}/s), {turns} turns, {coordinators} coordinators, "
        f"longest wait after faults {longest:.1f} s, failed seeds: {failed}; last digest {outcome.digest}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
