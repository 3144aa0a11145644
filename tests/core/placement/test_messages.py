"""Refusals of the core, with sizes as people write them."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.errors import Refused
from jupyter_gpushare.core.placement.books import Book
from jupyter_gpushare.core.placement.request import Request
from jupyter_gpushare.core.placement.tenants import Tenant, Tenants
from jupyter_gpushare.core.quota import Quota


def test_messages_of_the_core() -> None:
    book = Book("GPU-0", "a GPU", 1 << 30, 0)
    book.put("a", Request(memory=700 << 20))
    lack = book.lack_of_memory(Request(memory=400 << 20), 1.0)
    assert lack == "has at most 324 MiB left of the 1 GiB that may be asked for"
    assert str(Request(memory=734003200)) == "memory=700MiB"
    tenants = Tenants([Tenant("lab", memory=734003200)])
    for memory, asked in ((None, "all of the device's memory"), (1 << 30, "memory=1GiB")):
        with pytest.raises(Refused) as refused:
            tenants.check("a", "lab", Quota(memory=memory), 1)
        assert str(refused.value) == f"{asked} is above that of tenant 'lab': allowed is up to 700 MiB"
