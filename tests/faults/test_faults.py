"""Tests of the core, the coordinator and its sockets with many clients in virtual time, under many kinds of faults.

A run has 200,000 events in all, and ten million in the nightly tier.
`GPUSHARE_TEST_FAULTS=1e8` sets another number of events, and `GPUSHARE_TEST_FAULTS_FIRST` another first seed.
A failure is printed with the command that repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..support import tier
from .episode import Episode, Outcome

EVENT_COUNT = float(os.environ.get("GPUSHARE_TEST_FAULTS", tier.strength("2e5", "1e7")))
PARTS = 8  # tests that can run at the same time
FIRST_SEED = int(os.environ.get("GPUSHARE_TEST_FAULTS_FIRST", "0"))


def run(seed: int) -> Outcome:
    outcome = Episode(seed).run()
    assert not outcome.failure, outcome.failure
    return outcome


@pytest.mark.slow
@pytest.mark.timeout(max(600, EVENT_COUNT / PARTS / 1000))
@pytest.mark.parametrize("part", range(PARTS))
def test_invariants_hold_under_random_faults(part: int) -> None:
    events = 0
    seed = FIRST_SEED + part
    while events < EVENT_COUNT / PARTS:
        outcome = run(seed)
        events += outcome.events
        assert outcome.turns, f"no client ran with seed {seed}, so nothing was tested"
        seed += PARTS


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [11, 91000039])
def test_episode_has_the_same_digest_in_every_process(seed: int) -> None:
    """Hashes of texts, addresses of objects and numbers of descriptors do not change the events.

    The clients of the second seed have several devices each.
    """
    digests = set()
    for number in ("0", "1"):
        argv = [sys.executable, "-m", "tests.faults", "--seed", str(seed)]
        environment = {**os.environ, "PYTHONHASHSEED": number}
        ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=100, cwd=_root())
        assert ended.returncode == 0, ended.stdout + ended.stderr
        digests.add(ended.stdout.split()[-1])
    assert digests == {run(seed).digest}


def _root() -> Path:
    return Path(__file__).resolve().parent.parent.parent
