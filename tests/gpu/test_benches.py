"""Tests that the benches run on the card, with few repetitions: `jupyter gpushare bench NAME --device gpu`."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ..support import tier
from ..support.command import run_command
from .card_host import GIB, IS_GPU, CardHost

# Name: repetitions, or seconds for `drain` and `coexist`.
ROUNDS = {"gate": 3, "overhead": 1, "swap": 2, "drain": 8, "coexist": 6}
SECONDS = 100
SWAP_FREE = 36 * GIB  # the bench `swap` has 22 GiB of managed memory, which may be two thirds


@pytest.mark.parametrize("name", ROUNDS if IS_GPU else tier.nightly(ROUNDS))
def test_bench(host: CardHost, name: str, record_property: Callable[[str, object], None]) -> None:
    if IS_GPU and name == "swap" and (free := host.card_program("").run("cuda.info()[0]")) < SWAP_FREE:
        pytest.skip(f"needs {SWAP_FREE // GIB} GiB of free memory on the card, which has {free // GIB}")
    rounds = str(ROUNDS[name] if IS_GPU else 1)
    where = "gpu" if IS_GPU else "sim"
    done = run_command("bench", name, "--device", where, "--json", "--rounds", rounds, timeout=SECONDS)
    if "needs PyTorch" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    for figure, value in json.loads(done.stdout.splitlines()[-1]).items():
        record_property(figure, value)
