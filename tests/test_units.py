"""Tests of sizes, durations, fractions and pairs as users write and read them."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare import units


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("8589934592", 8 << 30),
        (8589934592, 8 << 30),
        ("8GiB", 8 << 30),
        ("8g", 8 << 30),
        ("8 GiB", 8 << 30),
        ("  8GIB ", 8 << 30),
        ("8GB", 8 * 10**9),
        ("8gb", 8 * 10**9),
        ("1.5KiB", 1536),
        (".5k", 512),
        ("2.", 2),
        (1536.0, 1536),
        ("0", 0),
        ("7b", 7),
        ("1TiB", 1 << 40),
        ("1TB", 10**12),
        ("9007199254740993", 9007199254740993),
    ],
    ids=str,
)
def test_sizes(written: object, size: int) -> None:
    assert units.parse_size(written) == size


@pytest.mark.parametrize(
    "written",
    [
        "",
        "GiB",
        "-1",
        "-1GiB",
        "1e9",
        "8 G B",
        "8PiB",
        1.5,
        "1.5",
        "0.5b",
        "1,5GiB",
        "0x10",
        "∞",
        "nan",
        "٣",
        None,
        True,
        [],
        {},
        "9" * 5000,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_invalid_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"is not a size|Exceeds|exceeds"):
        units.parse_size(written)


def test_a_size_beyond_floating_point_is_refused_not_an_overflow() -> None:
    with pytest.raises(ValueError, match="too large for a size"):
        units.parse_size("9" * 400 + ".5GiB")


@given(st.text(max_size=20) | st.floats() | st.integers())
def test_any_size_is_an_int_or_a_value_error(written: object) -> None:
    with contextlib.suppress(ValueError):
        assert units.parse_size(written) >= 0


@pytest.mark.parametrize(("written", "value"), [("0.5", 0.5), (0.5, 0.5), ("50%", 0.5), (" 5 % ", 0.05), (1, 1.0)])
def test_fractions(written: object, value: float) -> None:
    assert units.parse_fraction(written) == pytest.approx(value)


@pytest.mark.parametrize("written", ["", "%", "half", "nan", "inf", "1e400", True, None, [], "0,5"], ids=repr)
def test_invalid_fraction_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a fraction"):
        units.parse_fraction(written)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.0123, "12.3 ms"),
        (0.9999, "1 s"),
        (2.04, "2 s"),
        (2.25, "2.2 s"),
        (9.96, "10 s"),
        (12.4, "12 s"),
        (59.7, "1 min"),
        (75, "1 min 15 s"),
        (7200, "2 h"),
        (7300, "2 h 1 min"),
    ],
)
def test_durations_are_shown(seconds: float, shown: str) -> None:
    assert units.format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90", 90), (90, 90), (0.5, 0.5), ("30s", 30), ("5min", 300), (" 1.5 Minutes ", 90), ("2h", 7200), ("0", 0)],
    ids=str,
)
def test_durations_are_read(written: object, seconds: float) -> None:
    assert units.parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "min", "-5", -5, "5 days", "1e9", "nan", float("inf"), "5 min 3 s", None, True]
)
def test_invalid_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        units.parse_duration(written)


def test_pairs() -> None:
    assert units.parse_pairs("share=0.5 memory=8GiB") == {"share": "0.5", "memory": "8GiB"}
    assert units.parse_pairs("share=0.5,memory=8GiB") == {"share": "0.5", "memory": "8GiB"}
    assert units.parse_pairs("label='a b'  x==") == {"label": "a b", "x": "="}
    assert units.parse_pairs("limit=90 %, MEMORY=8 GiB, Share=50%") == {
        "limit": "90%",
        "memory": "8GiB",
        "share": "50%",
    }
    assert units.parse_pairs("") == {}


@pytest.mark.parametrize("written", ["share", "=1", "share=", "share=1 share=2", "share='1", "share = 1"])
def test_invalid_pairs_are_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form key=value|given twice|quotation"):
        units.parse_pairs(written)


SIZES = st.integers(0, 1 << 50) | st.builds(
    lambda unit, number: number << unit, st.integers(0, 40), st.integers(0, 2000)
)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1 << 20, "1 MiB"),
        (734003200, "700 MiB"),
        (561048576, "535.1 MiB"),
        ((1 << 30) - 1, "1 GiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5 TiB"),
        (3000 << 40, "3000 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_sizes_as_users_write_them(size: int, shown: str) -> None:
    assert units.format_size(size) == shown


@given(SIZES)
def test_formatted_values_parse_to_the_same_value(size: int) -> None:
    floor, ceil = units.format_size(size, math.floor), units.format_size(size, math.ceil)
    assert units.parse_size(floor) <= size <= units.parse_size(ceil)
    assert units.parse_size(units.format_size(size)) == pytest.approx(size, rel=0.006)
    typed = f"memory={units.format_size(size)} share=0.5"
    assert units.parse_pairs(typed) == {"memory": units.format_size(size).replace(" ", ""), "share": "0.5"}
