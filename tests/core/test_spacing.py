"""AntMan's pauses, and GPUShare's prediction of how long launches take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.core.spacing import NOT_SPACED, STOP, LaunchLength, pause, spacing_ppm
from jupyter_gpushare.wire.page import layout


@given(st.floats(0.001, 10), st.floats(0, 10), st.floats(1, 100))
def test_with_its_pauses_a_client_uses_its_part_at_most(run: float, think: float, percent: float) -> None:
    duration = run + think
    sleep = pause(run, percent, duration)
    assert sleep is not None
    assert run / (duration + sleep) <= percent / 100 + 1e-9
    assert sleep == 0 or run / (duration + sleep) == pytest.approx(percent / 100), "and not less for nothing"


def test_nothing_may_run_at_nothing() -> None:
    assert pause(0.1, 0, 0.1) is None


@pytest.mark.parametrize(("fraction", "ppm"), [(1.0, NOT_SPACED), (0.25, 250_000), (1e-9, 1), (0.0, STOP)])
def test_the_page_is_told_in_millionths(fraction: float, ppm: int) -> None:
    assert spacing_ppm(fraction) == ppm


def test_stop_is_the_page_s_word_for_it() -> None:
    assert layout()[1]["GPUSHARE_SPACING_STOP"] == STOP


def test_short_launches_pass() -> None:
    lengths = LaunchLength()
    lengths.add(0, 0.0)
    assert not lengths.passes(0.001), "nothing is known yet"
    lengths.add(1000, 0.1)
    assert lengths.passes(0.001)
    lengths.add(2000, 10.1)
    assert not lengths.passes(0.001)


def test_few_launches_tell_nothing() -> None:
    lengths = LaunchLength()
    lengths.add(0, 0.0)
    lengths.add(3, 0.1)
    assert lengths.seconds is None


def test_a_new_process_begins_again() -> None:
    lengths = LaunchLength()
    lengths.add(0, 0.0)
    lengths.add(1000, 0.1)
    lengths.add(10, 0.0)
    lengths.add(1010, 0.1)
    assert lengths.seconds == pytest.approx(0.0001)
