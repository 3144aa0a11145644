"""Tests of programs on a real card: two trainings beyond the memory cap, a memory limit, and the demo."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ..support.command import run_command
from .conftest import device_memory

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

TRAINING = textwrap.dedent(
    """
    import json, sys, torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(256, 1024, device="cuda")
    ballast = torch.ones(int(sys.argv[1]) // 4, device="cuda")
    for step in range(300):
        optimiser.zero_grad()
        loss = ((model(data) - data) ** 2).mean()
        loss.backward()
        optimiser.step()
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({"loss": loss.item(), "ballast": ballast.sum().item(), "free": free, "total": total}))
    """
)


def _train(shared: bool, ballast: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", TRAINING, str(ballast)]
    if shared:
        command = [sys.executable, "-m", "jupyter_gpushare", "run", "--label", "train", "--", *command]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str]) -> dict[str, float]:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def test_two_trainings_beyond_the_cap_give_the_same_losses_as_alone(coordinator: str) -> None:
    pytest.importorskip("torch")
    ballast = device_memory() // 8 * 5  # both trainings have a quarter more than the cap
    alone = _result(_train(False, ballast))
    together = [_train(True, ballast) for _ in range(2)]
    for result in map(_result, together):
        assert result["loss"] == pytest.approx(alone["loss"], rel=1e-4)
        assert result["ballast"] == alone["ballast"]
        assert result["total"] == device_memory()
        assert 0 < result["free"] < result["total"] - ballast


def test_a_program_beyond_its_limit_gets_out_of_memory_and_lives(coordinator: str) -> None:
    pytest.importorskip("torch")
    program = textwrap.dedent(
        """
        import torch
        try:
            torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            print("refused")
        print(torch.ones(1000, device="cuda").sum().item())
        """
    )
    done = run_command("run", "--memory", "1GiB", "--", sys.executable, "-c", program, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused", "1000.0"]


def test_the_demo_runs_on_the_card(tmp_path: Path) -> None:
    done = run_command("demo", "--device", "gpu", "--output", str(tmp_path), timeout=290)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["simulated"]
    assert report["overlap_seconds"] == 0 and report["wrong_results"] == 0
    assert report["oversubscription"] > 1.5
