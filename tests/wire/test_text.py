"""Pairs and quota words as people write and read them."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire import text


def test_pairs() -> None:
    assert text.parse_pairs("share=0.5 memory=8GiB") == {"share": "0.5", "memory": "8GiB"}
    assert text.parse_pairs("share=0.5,memory=8GiB") == {"share": "0.5", "memory": "8GiB"}
    assert text.parse_pairs("label='a b'  x==") == {"label": "a b", "x": "="}
    assert text.parse_pairs("") == {}


@pytest.mark.parametrize("written", ["share", "=1", "share=", "share=1 share=2", "share='1", "share = 1"])
def test_what_are_no_pairs(written: str) -> None:
    with pytest.raises(ValueError, match=r"not of the form key=value|given twice|quotation"):
        text.parse_pairs(written)


def test_class_is_another_word_for_service() -> None:
    assert text.quota_words({"share": "0.5", "class": "offline"}) == {"share": "0.5", "service": "offline"}
    assert text.quota_words({"class": "Offline"}) == {"service": "offline"}
    with pytest.raises(ValueError, match="two names of the same thing"):
        text.quota_words({"class": "offline", "service": "offline"})
