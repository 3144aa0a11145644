"""Tests of the options for a quota before the start of a kernel or program."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.config import quota_options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, ""),
        ({"share": 0.5, "memory": "8GiB", "limit": None, "service": ""}, "share=0.5 memory=8GiB"),
        ({"memory": "0.5", "affinity": "pair", "device": "0+2"}, "memory=0.5 affinity=pair device=0+2"),
        ({"share": "50%", "limit": 1, "memory": "8 GiB"}, "share=50% limit=1 memory=8GiB"),
    ],
)
def test_quota_as_text(options: dict[str, Any], text: str) -> None:
    assert quota_options.quota_text(**options) == text


@pytest.mark.parametrize(
    ("options", "complaint"),
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
def test_invalid_quota_is_refused_with_the_allowed_values(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        quota_options.quota_text(**options)
