"""Tests of `gs.step` and `gs.progress` of programs and notebooks that share a device, with the shipped defaults."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from ..native.simlog import Execution
from .notebook_client import Notebook
from .system_host import MOST, SystemHost, wait_until

LOOP = """
import jupyter_gpushare as gs
for epoch in gs.progress(range(4), text="epoch"):
    for _ in range(25):
        with gs.step():
            check(cuda.spin(1))
"""

STEP_COUNT, STEP_LAUNCHES = 150, 20
STEPS = f"""
for _ in range({STEP_COUNT}):
    with gs.step():
        for _ in range({STEP_LAUNCHES}):
            check(cuda.spin(1))
            check(cuda.cuCtxSynchronize())
"""


def progress(host: SystemHost, client: str) -> str:
    return str(host.clients()[client]["progress_text"])


def test_steps_and_progress_of_a_program_are_shown(default_settings_host: SystemHost) -> None:
    host = default_settings_host
    program = host.program("trains")
    assert progress(host, "trains") == ""
    program.run(LOOP)
    wait_until(lambda: progress(host, "trains").startswith("epoch: 4 of 4"))
    wait_until(lambda: host.page(program)["training_steps"] == 100)
    shown = host.command("status")
    assert "trains: epoch: 4 of 4" in shown.stdout, shown
    program.run("for _ in range(4): threading.Thread(target=lambda: [gs.step() for _ in range(1000)]).start()")
    wait_until(lambda: host.page(program)["training_steps"] == 4100)
    program.run("child = os.fork()\nif child == 0:\n    gs.step()\n    os._exit(0)\nos.waitpid(child, 0)")
    program.run("gs.step()")
    wait_until(lambda: host.page(program)["training_steps"] == 4101)


def turns_end_after(own: Sequence[Execution], others: Sequence[Execution]) -> list[int]:
    """Return the numbers of the launches of `own`, from 1 on, between which and the next one others have begun."""
    return [
        number
        for number, (launch, following) in enumerate(itertools.pairwise(own), 1)
        if any(launch.begin_ns < other.begin_ns < following.begin_ns for other in others)
    ]


def test_turns_end_between_training_steps(default_settings_host: SystemHost) -> None:
    """A step has twenty launches, so without marks one turn in twenty would end after the last of them.

    On a busy machine, a step may end too late for its turn.
    """
    host = default_settings_host
    trains, other = (host.program(name, part=MOST) for name in ("trains", "other"))
    trains.run("import jupyter_gpushare as gs")
    first = len(host.launches(trains))
    other.busy()
    turn_ends: list[int] = []
    while len(turn_ends) < 6:  # a busy machine has fewer turns in as many steps
        trains.run(STEPS, 60.0)
        own = host.launches(trains)[first:]
        turn_ends = [
            number for number in turns_end_after(own, host.launches(other)) if number % (STEP_COUNT * STEP_LAUNCHES)
        ]
    other.stop()
    assert sum(number % STEP_LAUNCHES == 0 for number in turn_ends) >= len(turn_ends) / 3, turn_ends


def test_progress_of_a_notebook_is_shown_until_its_cell_ends(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    host, notebook = default_settings_host, start()
    folder = host.folder
    wait = f"import os, time\nwhile not os.path.exists({str(folder / 'go')!r}): time.sleep(0.01)"
    request = notebook.start(f"import jupyter_gpushare as gs\ngs.progress(3, 10, 'fold')\n{wait}")
    wait_until(lambda: progress(host, notebook.client_id) == "fold: 3 of 10")
    (folder / "go").touch()
    notebook.finish(request)
    assert progress(host, notebook.client_id) == ""
    (folder / "go").unlink()
    request = notebook.start(wait)
    wait_until(lambda: host.clients()[notebook.client_id]["cells"] == 1)
    wait_until(lambda: progress(host, notebook.client_id) == "")
    (folder / "go").touch()
    notebook.finish(request)
