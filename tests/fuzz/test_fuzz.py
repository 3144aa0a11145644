"""Tests of native code under random inputs: parsers of foreign input, and the ledger.

The C files of this folder except `driver.c` are targets for libFuzzer.
With clang on the machine and `GPUSHARE_TEST_FUZZ=SECONDS` (`make fuzz`), libFuzzer runs the targets.
Otherwise `cc` builds the targets with `driver.c`, which tries mutated seeds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ..support import tier

HERE = Path(__file__).resolve().parent
SECONDS = int(os.environ.get("GPUSHARE_TEST_FUZZ", "0"))
NATIVE = HERE.parents[1] / "native"
FLAGS = (
    f"-std=gnu11 -I{NATIVE}/shim -I{NATIVE}/simcuda -D_GNU_SOURCE -g -O1 -Wall -Wextra -Wno-unused-parameter"
    " -fno-omit-frame-pointer"
)
SANITIZERS = "address,undefined,float-cast-overflow"
# Runs of one round by target, which take about three seconds.
RUNS = {"ledger": 6_000, "params": 60_000, "ptx": 100_000, "wire": 60_000}
PARTS = tier.strength(3, 1)  # the short tier makes a third of the runs

TARGETS = sorted(path.stem for path in HERE.glob("*.c") if path.stem != "driver")


def environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE_", "LD_"))}
    return clean | {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.timeout(SECONDS + 120)
def test_any_input(target: str, tmp_path: Path) -> None:
    program, source = tmp_path / target, HERE / f"{target}.c"
    clang = shutil.which("clang") if SECONDS else None
    compiler = [clang or "cc", *FLAGS.split(), "-fno-sanitize-recover=all"]
    if clang:
        sources = [f"-fsanitize=fuzzer,{SANITIZERS}", str(source)]
    else:
        sources = [f"-fsanitize={SANITIZERS}", str(source), str(HERE / "driver.c")]
    subprocess.run([*compiler, "-o", str(program), *sources, "-lm", "-pthread"], check=True)
    crashes = Path(os.environ.get("GPUSHARE_TEST_CRASHES", tmp_path)).resolve()
    crashes.mkdir(parents=True, exist_ok=True)
    seeds = HERE / "seeds" / target
    if clang:
        (tmp_path / "corpus").mkdir()
        options = [
            f"-max_total_time={SECONDS}",
            "-max_len=4096",
            f"-artifact_prefix={crashes}/{target}-",
            "-verbosity=0",
        ]
        argv = [str(program), *options, str(tmp_path / "corpus"), str(seeds)]
        check(subprocess.run(argv, env=environment(), capture_output=True, text=True))
        return
    runs, rounds = RUNS[target] // PARTS, max(1, SECONDS // 3, tier.strength(1, 10))
    for number in range(rounds):
        argv = [str(program), str(runs), str(number), str(crashes), *map(str, sorted(seeds.iterdir()))]
        check(subprocess.run(argv, env=environment(), capture_output=True, text=True))


def test_every_target_has_seeds_and_a_number_of_runs() -> None:
    assert TARGETS == sorted(RUNS) == sorted(path.name for path in (HERE / "seeds").iterdir())
