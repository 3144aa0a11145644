"""Sizes, fractions, pairs and durations as people write and read them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.wire import text


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
    assert text.parse_size(written) == size


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
def test_what_is_no_size(written: object) -> None:
    with pytest.raises(ValueError, match=r"is not a size|Exceeds|exceeds"):
        text.parse_size(written)


def test_a_size_beyond_floating_point_is_refused_not_an_overflow() -> None:
    with pytest.raises(ValueError, match="beyond any size"):
        text.parse_size("9" * 400 + ".5GiB")


@given(st.text(max_size=20) | st.floats() | st.integers())
def test_any_size_is_an_int_or_a_value_error(written: object) -> None:
    with contextlib.suppress(ValueError):
        assert text.parse_size(written) >= 0


@pytest.mark.parametrize(("written", "value"), [("0.5", 0.5), (0.5, 0.5), ("50%", 0.5), (" 5 % ", 0.05), (1, 1.0)])
def test_fractions(written: object, value: float) -> None:
    assert text.parse_fraction(written) == pytest.approx(value)


@pytest.mark.parametrize("written", ["", "%", "half", "nan", "inf", "1e400", True, None, [], "0,5"], ids=repr)
def test_what_is_no_fraction(written: object) -> None:
    with pytest.raises(ValueError, match="is not a fraction"):
        text.parse_fraction(written)


def test_pairs() -> None:
    assert text.parse_pairs("share=0.5 memory=8GiB") == {"share": "0.5", "memory": "8GiB"}
    assert text.parse_pairs("share=0.5,memory=8GiB") == {"share": "0.5", "memory": "8GiB"}
    assert text.parse_pairs("label='a b'  x==") == {"label": "a b", "x": "="}
    assert text.parse_pairs("") == {}


@pytest.mark.parametrize("written", ["share", "=1", "share=", "share=1 share=2", "share='1", "share = 1"])
def test_what_are_no_pairs(written: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form key=value|given twice|quotation"):
        text.parse_pairs(written)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (150 * 1024, "150 KiB"),
        (8 << 30, "8 GiB"),
        (1 << 40, "1 TiB"),
        (1 << 50, "1024 TiB"),
    ],
)
def test_sizes_are_shown(size: int, shown: str) -> None:
    assert text.format_size(size) == shown


@given(st.integers(0, 1 << 55))
def test_a_shown_size_is_the_size_but_for_rounding(size: int) -> None:
    assert text.parse_size(text.format_size(size).replace(" ", "")) == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.25, "0.2 s"),
        (9.96, "10.0 s"),
        (12.4, "12 s"),
        (59.7, "1 min"),
        (75, "1 min 15 s"),
        (7200, "2 h"),
        (7300, "2 h 1 min"),
    ],
)
def test_durations_are_shown(seconds: float, shown: str) -> None:
    assert text.format_seconds(seconds) == shown


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90", 90), (90, 90), (0.5, 0.5), ("30s", 30), ("5min", 300), (" 1.5 Minutes ", 90), ("2h", 7200), ("0", 0)],
    ids=str,
)
def test_durations_are_read(written: object, seconds: float) -> None:
    assert text.parse_seconds(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "min", "-5", -5, "5 days", "1e9", "nan", float("inf"), "5 min 3 s", None, True]
)
def test_what_is_no_duration_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        text.parse_seconds(written)


def test_class_is_another_word_for_service() -> None:
    assert text.quota_words({"share": "0.5", "class": "offline"}) == {"share": "0.5", "service": "offline"}
    assert text.quota_words({"class": "Offline"}) == {"service": "offline"}
    with pytest.raises(ValueError, match="two names of the same thing"):
        text.quota_words({"class": "offline", "service": "offline"})
