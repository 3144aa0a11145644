"""Tests of `gs.step` and `gs.progress` without the shim, and of the arguments of `gs.progress`.

`tests/system/test_training.py` has both with the shim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jupyter_gpushare as gs
from jupyter_gpushare import training


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, bytes]]:
    """Record what the shim would get."""
    calls: list[tuple[int, int, bytes]] = []
    monkeypatch.setattr(training, "_show_progress", lambda *values: calls.append(values))
    return calls


def test_steps_and_progress_do_nothing_without_the_shim() -> None:
    gs.step()
    with pytest.raises(ZeroDivisionError), gs.step():
        _ = 1 / 0
    gs.progress(3, 10)
    assert list(gs.progress(range(3))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((-1,), "done: -1 is negative"),
        ((1, -1), "total: -1 is negative"),
        ((11, 10), "done: 11 is more than the total, 10"),
        ((float("nan"),), "done: nan is not a whole number"),
        ((1, float("inf")), "total: inf is not a whole number"),
        ((2.5, 10), "done: 2.5 is not a whole number"),
        ((-(10**5000),), "done: the number is negative"),
        ((True, 10), "done: True is not a number"),
        ((1, np.bool_(True)), "total: .*True.* is not a number"),
        ((bytearray(b"33"),), "done: bytearray.* is neither a number nor an iterable"),
        ((1, bytearray(b"33")), "total: bytearray.* is not a number"),
        ((1, "ten"), "total: 'ten' is not a number"),
        (("3",), "done: '3' is neither a number nor an iterable"),
        ((None,), "done: None is neither a number nor an iterable"),
        ((1 << 60,), "done: the number is too large"),
        ((1, 2, 3), "text: 3 is not a text"),
        (([1], "many"), "total: 'many' is not a number"),
    ],
)
def test_wrong_arguments_are_refused(
    shown: list[tuple[int, int, bytes]], arguments: tuple[Any, ...], problem: str
) -> None:
    with pytest.raises(gs.UsageError, match=problem):
        gs.progress(*arguments)
    assert shown == []


def test_numbers_of_any_kind_are_shown(shown: list[tuple[int, int, bytes]]) -> None:
    gs.progress(3)
    gs.progress(np.int64(3), np.float32(10))
    gs.progress(10.0, total=10, text="x" * 63 + "é\0")
    assert shown == [(3, 0, b""), (3, 10, b""), (10, 10, b"x" * 63)]


def test_an_iterable_is_shown_item_by_item(shown: list[tuple[int, int, bytes]]) -> None:
    assert list(gs.progress(np.array([7, 8]), text="epoch")) == [7, 8]
    assert shown == [(0, 2, b"epoch"), (1, 2, b"epoch"), (2, 2, b"epoch")]
    del shown[:]
    assert list(gs.progress((one for one in "abc"), 2)) == ["a", "b", "c"]
    assert [(done, total) for done, total, _ in shown] == [(0, 2), (1, 2), (2, 2), (3, 0)]
    del shown[:]
    assert list(gs.progress([])) == [] and shown == [(0, 0, b"")]


class ArrayOfOne:
    """Array of one element that allows `float`, as NumPy's arrays before 2.4 do, and tensors of PyTorch."""

    def __len__(self) -> int:
        return 1

    def __float__(self) -> float:
        return 7.0

    def __iter__(self) -> Iterator[int]:
        return iter([7])


class TensorOfOne(ArrayOfOne):
    ndim = 1


class TensorOfNone(ArrayOfOne):
    """Tensor without dimensions, which is one number."""

    ndim = 0


def test_an_array_of_one_element_is_an_iterable(shown: list[tuple[int, int, bytes]]) -> None:
    for array in (ArrayOfOne(), TensorOfOne(), np.arange(7, 8)):
        assert list(gs.progress(array)) == [7]
        assert shown == [(0, 1, b""), (1, 1, b"")]
        del shown[:]
    gs.progress(TensorOfNone())
    gs.progress(np.array(8))
    assert shown == [(7, 0, b""), (8, 0, b"")]


class WithoutLength(ArrayOfOne):
    def __len__(self) -> int:
        raise ValueError("the length is unknown")


def test_a_length_that_raises_is_an_unknown_total(shown: list[tuple[int, int, bytes]]) -> None:
    assert list(gs.progress(WithoutLength())) == [7]
    assert next(iter(gs.progress(range(10**30)))) == 0
    assert shown == [(0, 0, b""), (1, 0, b""), (0, 0, b"")]
