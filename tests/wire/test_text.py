"""Quota words as people write them."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire import text


def test_class_is_another_word_for_service() -> None:
    assert text.quota_words({"share": "0.5", "class": "offline"}) == {"share": "0.5", "service": "offline"}
    assert text.quota_words({"class": "Offline"}) == {"service": "offline"}
    with pytest.raises(ValueError, match="two names of the same thing"):
        text.quota_words({"class": "offline", "service": "offline"})
