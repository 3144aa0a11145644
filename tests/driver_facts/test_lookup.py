"""Facts about the lookup of the driver's functions (see test_facts.py)."""

from __future__ import annotations

import ctypes
import re

from .harness import ROOT, Cuda, on_driver

TABLE = (ROOT / "native" / "shim" / "driver" / "hooks.def").read_text()


@on_driver()
def test_the_driver_exports_the_functions_that_its_lookup_returns(cuda: Cuda) -> None:
    """For each row of hooks.def that cuGetProcAddress knows, the driver exports the symbol. (Otherwise the self-test of
    the shim turns sharing off.)

    Source: documentation of cuGetProcAddress; exports of the stub library of the toolkit. Seen on an H200.
    """
    library, function, status = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
    rows = re.findall(r"^(?:GATED|CUSTOM|LOADS|LOOKUP)\(\w+, (\w+), (\w+), (\d+),", TABLE, re.MULTILINE)
    found, missing = 0, []
    version = cuda.cuDriverGetVersion()
    for symbol, base, since in rows:
        arguments = base.encode(), ctypes.byref(function), int(since), ctypes.c_uint64(0), ctypes.byref(status)
        if int(since) > version or library.cuGetProcAddress_v2(*arguments) or not function.value:
            continue
        found += 1
        if not hasattr(library, symbol):
            missing.append(symbol)
    assert found > 80 and not missing, (found, missing)
