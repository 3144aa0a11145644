"""Refusals and notices of the core, with sizes as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.coordinator.sizes import worded
from jupyter_gpushare.core.errors import Refused
from jupyter_gpushare.core.placement.books import Book
from jupyter_gpushare.core.placement.request import Request
from jupyter_gpushare.core.placement.tenants import Tenant, Tenants
from jupyter_gpushare.core.quota import Quota
from jupyter_gpushare.kernel import texts
from jupyter_gpushare.wire.text import format_size, parse_pairs, parse_size

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
def test_sizes_as_people_write_them(size: int, shown: str) -> None:
    assert format_size(size) == texts.size(size) == shown


@given(SIZES)
def test_what_is_shown_can_be_typed_back_in(size: int) -> None:
    assert parse_size(format_size(size, math.floor)) <= size <= parse_size(format_size(size, math.ceil))
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.006)
    assert texts.size(size) == format_size(size)
    typed = f"memory={format_size(size)} share=0.5"
    assert parse_pairs(typed) == {"memory": format_size(size).replace(" ", ""), "share": "0.5"}


def test_messages_of_the_core() -> None:
    book = Book("GPU-0", "a GPU", 1 << 30, 0)
    book.put("a", Request(memory=700 << 20))
    lack = book.lack_of_memory(Request(memory=400 << 20), 1.0)
    assert worded(lack) == "has at most 324 MiB left of the 1 GiB that may be asked for"
    assert worded(Request(memory=734003200)) == "memory=700MiB"
    tenants = Tenants([Tenant("lab", memory=734003200)])
    for memory, asked in ((None, "all of the device's memory"), (1 << 30, "memory=1GiB")):
        with pytest.raises(Refused) as refused:
            tenants.check("a", "lab", Quota(memory=memory), 1)
        assert worded(refused.value) == f"{asked} is above that of tenant 'lab': allowed is up to 700 MiB"
