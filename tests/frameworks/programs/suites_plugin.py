"""Plugin of pytest with the parts that the tests of other projects require and their packages do not have."""

import importlib.util
from pathlib import Path

import pytest
import pytest_timeout
from _pytest.junitxml import mangle_test_address

if importlib.util.find_spec("jax_plugins"):  # JAX requires the files of a card, and NVIDIA's own libraries
    import jax_plugins.xla_cuda13
    from jax._src import hardware_utils

    hardware_utils.has_visible_nvidia_gpu = lambda: True
    jax_plugins.xla_cuda13._check_cuda_versions = lambda *_, **__: None


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    """Set the attribute that Numba's own tests read."""
    request.cls._dump_failed_filechecks = False


def pytest_addoption(parser):
    parser.addoption("--only-tests", type=Path, help="file with the names, as in the report, of the tests to run")


def pytest_collection_modifyitems(config, items):
    if config.option.only_tests:
        names = config.option.only_tests.read_text().splitlines()
        items[:] = [item for item in items if _name(item) in names]


def _name(item):
    """Return a test's name as the report has it."""
    return ".".join(mangle_test_address(item.nodeid))


_end_process = pytest_timeout.timeout_timer


def _record_and_end(item, settings):
    """Write the test's name beside the report, and end the process."""
    report = Path(item.config.option.xmlpath)
    with report.with_suffix(".limit").open("a") as names:
        names.write(_name(item) + "\n")
    _end_process(item, settings)


pytest_timeout.timeout_timer = _record_and_end
