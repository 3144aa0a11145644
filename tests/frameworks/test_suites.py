"""Comparison of the results of other projects' own tests without the shim and in each memory mode."""

from __future__ import annotations

import subprocess
from xml.etree import ElementTree

import pytest

from ..driver_facts.harness import simulated_driver
from . import conftest, suites
from .conftest import MODES, PROGRAMS, FrameworkHost

TEST_SECONDS = 60  # limit of one test: some wait without end for a kernel, and no kernel is computed


@pytest.fixture(autouse=True)
def frameworks() -> None:
    """Replace the fixture that requires PyTorch, which one suite needs."""


def passed(host: FrameworkHost, name: str, mode: str) -> set[str]:
    """Run a suite in a memory mode, or without the shim if `mode` is empty, and return the passed tests."""
    suite = suites.SUITES[name]
    report = host.folder / "report.xml"
    driver, libraries = simulated_driver().parent, suites.library_path(name)
    more = {"GPUSHARE_SIM_KERNEL_NS": "20000", "PYTHONPATH": str(PROGRAMS)}
    more |= suites.variables(name, host.folder / "cache", driver)
    if mode:
        more |= {"LD_LIBRARY_PATH": ":".join(libraries)} if libraries else {}
        env = host.client_environment(name, GPUSHARE_MEMORY_MODE=mode, **more)
    else:
        env = host.environment(LD_LIBRARY_PATH=":".join([*libraries, str(driver)]), **more)
    options = ["-q", "-n", "1", "-p", "no:cacheprovider", "-p", "suites_plugin", f"--junitxml={report}"]
    options += [f"--timeout={TEST_SECONDS}", "--timeout-method=thread", "-o", "consider_namespace_packages=true"]
    done = subprocess.run(
        [suites.python(name), "-m", "pytest", *options, *suites.arguments(name)],
        env=env,
        cwd=suites.source(name) / suite.folder if suite.repository else host.folder,
        capture_output=True,
        text=True,
        timeout=suite.seconds,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = ElementTree.parse(report).iter("testcase")
    report.unlink()
    return {f"{case.get('classname')}.{case.get('name')}" for case in cases if len(case) == 0}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.timeout(len(MODES) * suite.seconds + 60))
        for name, suite in suites.SUITES.items()
    ],
)
def test_a_suite_passes_the_same_tests_without_the_shim_and_in_each_mode(host: FrameworkHost, name: str) -> None:
    reason = suites.problem(name)
    if suites.SUITES[name].needs_pytorch:
        reason = reason or conftest.problem()
    if reason:
        pytest.skip(reason)
    without_shim = passed(host, name, "")
    assert len(without_shim) >= suites.SUITES[name].min_passed
    for mode in MODES[1:]:
        with_shim = passed(host, name, mode)
        assert (without_shim - with_shim, with_shim - without_shim) == (set(), set()), mode
