"""Fixture that Numba's own tests require, which the package of Numba does not have."""

import pytest


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False
