"""A quota as words, before a kernel or a program starts."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.config import quota_options


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({}, ""),
        ({"share": 0.5, "memory": "8GiB", "limit": None, "service": ""}, "share=0.5 memory=8GiB"),
        ({"memory": "0.5", "affinity": "pair", "device": "0+2"}, "memory=0.5 affinity=pair device=0+2"),
        ({"share": "50%", "limit": 1, "memory": "8 GiB"}, "share=50% limit=1 memory=8GiB"),
    ],
)
def test_quota_as_text(wanted: dict[str, Any], text: str) -> None:
    assert quota_options.quota_text(**wanted) == text


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({"memory": "-1"}, "memory=-1"),
        ({"memory": "1.5"}, "memory=1.5 .*fraction above 0 and up to 1"),
        ({"memory": "0%"}, "fraction above 0 and up to 1"),
        ({"affinity": "a,b"}, "affinity=a,b: allowed are letters"),
        ({"share": 2}, "from 0 to 1"),
        ({"limit": 0}, "a fraction from 0.001 to 1"),
        ({"share": 0.6, "limit": 0.5}, "above limit=0.5"),
    ],
)
def test_a_bad_quota_is_refused_with_what_is_allowed(wanted: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        quota_options.quota_text(**wanted)
