"""Tests of programs that mark training steps, in the simulator with the shipped defaults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.workloads.workload import Participant

from .workloads import GB, CheckedSimulation, endless_participant, make_workload

MEMORY = 50 * GB  # of each of two jobs, so that they take turns on a device of 80 GB
SECONDS = 600.0


class RecordedTurns(CheckedSimulation):
    """Simulation that records the GPU seconds of the job "marks" at the end of each turn, and its last progress."""

    ends: list[float]
    progress: ev.Progress

    def handle_event(self, event: ev.Event) -> None:
        client = self.clients.get("marks")
        if isinstance(event, ev.Progress) and event.client == "marks":
            self.progress = event
        if isinstance(event, ev.TurnLeft) and client and event.process == client.process_number:
            self.ends.append(client.gpu_seconds)
        super().handle_event(event)


def run(*jobs: Participant) -> RecordedTurns:
    RecordedTurns.ends = []
    simulation = RecordedTurns(make_workload(*jobs), Settings())
    simulation.run(SECONDS)
    return simulation


def endless_jobs(step: float) -> tuple[Participant, Participant]:
    return replace(endless_participant("marks", 0.0, 1000.0, memory=MEMORY), step=step), endless_participant(
        "other", 0.0, 1000.0, memory=MEMORY
    )


@pytest.mark.parametrize("step", [0.07, 0.5, 1.3])
def test_turns_end_between_two_training_steps(step: float) -> None:
    simulation = run(*endless_jobs(step))
    assert len(simulation.ends) > 20
    late = [end % step for end in simulation.ends if 0.001 < end % step < step - 0.001]
    assert len(late) <= 0.1 * len(simulation.ends), "but the first turn, which began without a deadline"


def test_turns_end_anywhere_without_marks() -> None:
    simulation = run(*endless_jobs(0.0))
    assert sum(0.001 < end % 0.5 < 0.499 for end in simulation.ends) > 0.5 * len(simulation.ends)


def test_marks_cost_a_program_at_most_the_rest_of_its_turns() -> None:
    (marks, other), (alike, _) = (
        [one.gpu_seconds for one in run(*endless_jobs(step)).all_clients] for step in (0.5, 0)
    )
    assert 0.9 * alike <= marks <= 1.02 * alike
    assert marks + other == pytest.approx(2 * alike, rel=0.03)


def test_a_report_of_progress_has_the_number_of_training_steps() -> None:
    jobs = [replace(endless_participant(name, 0.0, 1000.0, memory=GB), step=0.25) for name in ("marks", "other")]
    simulation = run(*jobs)
    assert simulation.progress.training_steps == pytest.approx(simulation.clients["marks"].gpu_seconds / 0.25, abs=8)
