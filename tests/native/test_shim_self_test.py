"""Tests of the self-test at the start: a process whose lookups lead past the shim does not share, and reports why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..driver_facts.harness import simulated_driver
from ..support import sanitizers
from ..support.compile_cache import cached
from .conftest import HERE, NativeHost, build_stub, built_shim


def test_a_function_that_the_driver_does_not_export(machine: NativeHost, tmp_path: Path) -> None:
    """The driver's own lookup returns the function, and the shim cannot call it."""
    folder = build_stub(tmp_path / "stub")
    client = machine.client(LD_LIBRARY_PATH=str(folder), STUB_HIDDEN="cuLaunchKernelEx", STUB_MANAGED="1")
    client.run("cuda = Cuda(start=False)")
    assert client.run("cuda.cuInit(0)") == 0
    errors = client.end()
    assert "not shared in this process" in errors and "cuLaunchKernelEx" in errors
    assert "Update jupyter-gpushare" in errors


@pytest.mark.skipif(bool(sanitizers.KIND), reason="a sanitizer is preloaded first")
@pytest.mark.parametrize("flags", [(), ("-DPER_PROCESS",)], ids=["past the shim", "another form of a function"])
def test_a_library_that_is_preloaded_before_the_shim(machine: NativeHost, flags: tuple[str, ...]) -> None:
    source = HERE / "other_lookup.c"
    command = ["cc", "-shared", "-fPIC", *flags, str(source), "-o"]
    other = cached(f"other{len(flags)}.so", [source], lambda out: [[*command, str(out)]])
    client = machine.client(LD_PRELOAD=f"{other} {built_shim()}")
    client.run(f"driver = ctypes.CDLL({str(simulated_driver())!r})")
    assert client.run("ctypes.CDLL(None).cuInit(0)") == 0  # the program calls the shim's function by its symbol
    assert client.run("cuda = Cuda()") is None
    assert client.run("cuda.spin()") == 0
    errors = client.end()
    assert "not shared in this process" in errors and "LD_PRELOAD" in errors


def test_a_program_that_asks_for_a_newer_function(stub: Any) -> None:
    client, _ = stub(STUB_MANAGED="1")
    client.run("function, status = c_void_p(), c_int()")
    look_up = "cuda.cuGetProcAddress_v2(b'cuMemAlloc', byref(function), 21000, c_uint64(0), byref(status))"
    assert client.run(f"[{look_up}, {look_up}]") == [0, 0]
    errors = client.end()
    assert errors.count("cuMemAlloc of CUDA 21.0") == 1 and "Update jupyter-gpushare" in errors
