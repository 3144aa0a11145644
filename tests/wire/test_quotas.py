"""Test of names of quota options as users write them: `class` is another word for `service`."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire import quotas


def test_class_is_another_word_for_service() -> None:
    assert quotas.canonical_quota({"share": "0.5", "class": "offline"}) == {"share": "0.5", "service": "offline"}
    assert quotas.canonical_quota({"class": "Offline"}) == {"service": "offline"}
    with pytest.raises(ValueError, match="two names of the same option"):
        quotas.canonical_quota({"class": "offline", "service": "offline"})
