"""Plugin of pytest with the parts that the tests of other projects require and their packages do not have."""

import importlib.util

import pytest

if importlib.util.find_spec("jax_plugins"):  # JAX requires the files of a card, and NVIDIA's own libraries
    import jax_plugins.xla_cuda13
    from jax._src import hardware_utils

    hardware_utils.has_visible_nvidia_gpu = lambda: True
    jax_plugins.xla_cuda13._check_cuda_versions = lambda *_, **__: None


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    """Set the attribute that Numba's own tests read."""
    request.cls._dump_failed_filechecks = False
