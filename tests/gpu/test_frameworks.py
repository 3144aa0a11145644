"""Tests of frameworks and allocators with a rival: steps right after evictions have the results of an exclusive run."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from .card_host import BALLAST, FRAMEWORK_SET, IS_GPU, MODES, WAIT, CardHost, steps

STEPS = 4  # each after an eviction

# Name: file, environment, relative tolerance of the results.
CASES: dict[str, tuple[str, dict[str, str], float]] = {
    "PyTorch, cudaMallocAsync": ("torch_training", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, 2e-2),
    "PyTorch, expandable segments": ("torch_training", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, 2e-2),
    "Triton": ("triton_sum", {}, 0),
    "torch.compile": ("torch_compiled", {}, 1e-3),
    "JAX": ("jax_training", {}, 1e-3),
    "CuPy": ("cupy_arrays", {}, 1e-5),
}
# In mode unified, memory that the program maps itself does not move.
PAIRS = [
    (case, mode) for case in CASES for mode in MODES if (case, mode) != ("PyTorch, expandable segments", "unified")
]
_expected: dict[str, list[float]] = {}


def expected_results(host: CardHost, case: str) -> list[float]:
    """Return the results of a program without the shim, from the first call."""
    if case not in _expected:
        name, variables, _ = CASES[case]
        program = host.framework("", name, **variables)
        _expected[case] = steps(program, STEPS)
        program.end()
    return _expected[case]


@pytest.mark.parametrize("host", [FRAMEWORK_SET], indirect=True, ids=[""])
@pytest.mark.parametrize(("case", "mode"), PAIRS)
def test_steps_after_evictions(
    host: CardHost, case: str, mode: str, record_property: Callable[[str, object], None]
) -> None:
    name, variables, tolerance = CASES[case]
    stages = [time.monotonic()]

    def end_stage(stage: str) -> None:
        """Record the seconds of a stage, which show in the report of a failed test how far the test came."""
        stages.append(time.monotonic())
        record_property(f"{stage}_s", round(stages[-1] - stages[-2], 1))

    expected = expected_results(host, case) if IS_GPU else []
    end_stage("without_the_shim")
    host.begin(mode)
    program = host.framework("one", name, mode, **variables)
    end_stage("import")
    rival = host.start_rival(mode, is_short=True)
    end_stage("rival")
    program.start(f"program.hold({BALLAST})")
    program.result(WAIT)
    end_stage("hold")
    found: list[float] = []
    for number in range(STEPS):
        host.wait_for_eviction("one")
        end_stage(f"eviction_{number}")
        found += steps(program, 1)
        end_stage(f"step_{number}")
    extremes = program.run("program.ballast_extremes()", WAIT)
    evicted = host.moved_bytes("one")
    record_property("evicted_bytes", evicted)
    record_property("turns", host.turns("one"))
    assert evicted > 0
    host.stop_rival(rival)
    if IS_GPU:  # the stand-ins compute no kernels
        assert extremes == [1.0, 1.0]
        assert found == pytest.approx(expected, rel=tolerance)
