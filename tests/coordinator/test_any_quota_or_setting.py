"""Tests of quotas and settings with random values: each is accepted, or refused with Refused."""

from __future__ import annotations

import contextlib
import json

from hypothesis import example, given
from hypothesis import strategies as st

from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.coordinator.config.live_settings import LiveSettings, parse_quota
from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.settings.table import LIVE

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1GiB", "50%", "c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["share", "limit", "memory", "resident", "service", "x"]), values, max_size=5))
def test_random_quota_is_valid_or_refused(changes: dict[str, object]) -> None:
    with contextlib.suppress(Refused):
        quota = Quota().with_changes(parse_quota(changes))
        assert 0 <= quota.share <= quota.limit <= 1 and quota.service in ("online", "offline")
        assert all(size is None or 0 < size < 1 << 62 for size in (quota.memory, quota.resident))


words = values | st.text("{}[]():,'\"x10=. ", max_size=12)


@given(st.dictionaries(st.sampled_from([*LIVE, "x"]), words, max_size=3))
@example({"default_quota": "{[]: 1}"})
def test_random_setting_is_valid_or_refused(changes: dict[str, object]) -> None:
    with contextlib.suppress(Refused):
        settings = LiveSettings(GpuShare()).with_changes(changes)
        assert settings.core_settings().time_quantum == "auto" or settings.core_settings().time_quantum >= 0.001
        json.dumps(settings.as_json())
