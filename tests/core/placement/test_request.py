"""Tests of placement requests, and of the errors for invalid requests."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.placement import PlacementRequest


def test_words_become_a_request() -> None:
    request = PlacementRequest.from_options(
        {"affinity": "pair", "exclusion": "team", "device": "0+GPU-7"}, gpus=2, share=0.25
    )
    assert request == PlacementRequest(gpus=2, share=0.25, affinity="pair", exclusion="team", devices=("0", "GPU-7"))
    assert PlacementRequest.from_options(request.to_options(), gpus=2, share=0.25) == request


@pytest.mark.parametrize(
    ("words", "fields", "message"),
    [
        ({"afinity": "x"}, {}, "unknown placement word 'afinity': allowed are device, affinity, anti_affinity"),
        ({"affinity": "a b"}, {}, "affinity='a b' is no label: allowed are 1 to 64 letters"),
        ({"exclusion": "x" * 65}, {}, "is no label"),
        ({"affinity": "x", "anti_affinity": "x"}, {}, "both 'x'"),
        ({"device": "0+"}, {}, "device='0\\+' is no device: allowed are a UUID, an index or a name"),
        ({}, {"gpus": 0}, "gpus=0 is out of range: allowed are 1 to 64"),
        ({}, {"share": 1.5}, "share=1.5 is out of range: allowed is a fraction from 0 to 1"),
        ({}, {"share": float("nan")}, "share=nan is out of range"),
        ({}, {"fraction": 0.0}, "memory=0 is out of range: allowed is a fraction above 0 and up to 1"),
        ({}, {"fraction": 0.5, "memory": 10}, "both in bytes and as a fraction"),
        ({}, {"memory": -1}, "memory=-1 is out of range"),
        ({}, {"service": "later"}, "service='later' is unknown: allowed are online, offline"),
    ],
)
def test_nonsense_is_named(words: dict[str, str], fields: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        PlacementRequest.from_options(words, **fields)


def test_a_fraction_is_of_each_device_and_bytes_are_of_all() -> None:
    half = PlacementRequest(gpus=2, fraction=0.5)
    assert (half.bytes_on(80), half.total_bytes((80, 40))) == (40, 60)
    assert PlacementRequest(gpus=2, memory=41).bytes_on(80) == 21
    assert PlacementRequest().total_bytes((80,)) is None


def test_a_client_takes_of_a_device_what_it_asks_most_of() -> None:
    assert PlacementRequest(share=0.3, memory=40).size_on(80) == 0.5
    assert PlacementRequest(share=0.7, memory=40).size_on(80) == 0.7
    assert PlacementRequest(memory=200).size_on(80) == 1.0, "more than the device counts as all of it"
