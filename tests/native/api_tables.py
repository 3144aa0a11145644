"""Reader of the shim's tables of driver functions, and of the driver API of two CUDA toolkits.

The headers come from NVIDIA's packages of the CUDA runtime (extra `test`); the shim is built without them.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

from ..driver_facts.harness import ROOT

SHIM = ROOT / "native" / "shim"
TOOLKITS = {12: "nvidia-cuda-runtime-cu12", 13: "nvidia-cuda-runtime"}
INTERFACES = [
    "cudaTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
    "cudaProfilerTypedefs.h",
]

each_toolkit = pytest.mark.parametrize("toolkit", TOOLKITS)


def headers(toolkit: int) -> Path:
    """Return the folder of a toolkit's headers."""
    package = TOOLKITS[toolkit]
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        pytest.fail(f"{package} is not installed: pip install -e '.[test]'")
    return next(Path(str(file.locate())).parent for file in files if file.name == "cuda.h")


# --- the shim's tables -----------------------------------------------------------------------------------------------


class Row(NamedTuple):
    kind: str
    twin: str
    symbol: str
    base: str
    since: int
    parameters: tuple[str, ...]

    def symbols(self) -> list[str]:
        return [self.symbol] if self.twin == "NONE" else [self.symbol, f"{self.symbol}_{self.twin.lower()}"]


def parameter_types(parameters: str) -> tuple[str, ...]:
    """Return the types of parameters, without names and `const`."""
    found = []
    for parameter in parameters.split(","):
        text = " ".join(re.sub(r"\b(const|struct|enum)\b", "", parameter).replace("*", " * ").split())
        named = re.fullmatch(r"(.*[\w*]) (?!int\b|long\b|char\b|short\b|unsigned\b)(\w+)", text)
        found.append(named[1].strip() if named else text)
    return () if found in ([""], ["void"]) else tuple(found)


@cache
def rows() -> list[Row]:
    text = (SHIM / "driver" / "hooks.def").read_text()
    found = re.findall(
        r"^(GATED|CUSTOM|LOADS|LOOKUP|USED)\((?:(\w+), )?(cu\w+),\s+(?:(cu\w+), (\d+),)?\s*\(([^()]*)\)",
        text,
        re.MULTILINE,
    )
    assert len(found) == len(re.findall(r"^(?:GATED|CUSTOM|LOADS|LOOKUP|USED)\(", text, re.MULTILINE))
    return [
        Row(kind, twin or "NONE", symbol, base, int(since or 0), parameter_types(p))
        for kind, twin, symbol, base, since, p in found
    ]


@cache
def hooked() -> frozenset[str]:
    return frozenset(symbol for row in rows() if row.kind != "USED" for symbol in row.symbols())


@cache
def unhooked_patterns() -> list[str]:
    text = (SHIM / "driver" / "unhooked.def").read_text()
    found = re.findall(r'^UNHOOKED\("([\w*]+)", "[^"]+"\)$', text, re.MULTILINE)
    assert len(found) == text.count("\nUNHOOKED(")
    return found


def without_suffix(symbol: str) -> str:
    return re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", symbol)


def unhooked_lines_for(symbol: str) -> list[str]:
    """Return the lines of unhooked.def that cover a symbol."""
    bases = {row.base for row in rows() if row.kind != "USED"}
    names = {symbol} if without_suffix(symbol) in bases else {symbol, without_suffix(symbol)}
    return [line for line in unhooked_patterns() if any(fnmatch.fnmatchcase(name, line) for name in names)]


# --- the API of a toolkit ---------------------------------------------------------------------------------------------


@cache
def preprocessed(toolkit: int, header: str) -> str:
    """Return a header after the preprocessor, with all versions of all functions."""
    command = [
        "cc",
        "-E",
        "-P",
        "-D__CUDA_API_VERSION_INTERNAL",
        f"-I{headers(toolkit)}",
        str(headers(toolkit) / header),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@cache
def prototypes(toolkit: int) -> dict[str, tuple[str, ...]]:
    """Return the parameters' types of every exported symbol that cuda.h declares."""
    text = re.sub(r"static inline [^;{]*\{[^}]*\}", "", preprocessed(toolkit, "cuda.h"))
    found = re.findall(r"CUresult\s+(cu[A-Z]\w+)\s*\(([^;]*?)\);", text)
    assert len(found) > 600
    return {name: parameter_types(parameters) for name, parameters in found}


@cache
def lookups(toolkit: int) -> frozenset[tuple[str, int, str]]:
    """Return the functions that cuGetProcAddress can find: name, version, twin.

    Of the interfaces to graphics, the tests use only the names.
    """
    found: set[tuple[str, int, str]] = set()
    for header in INTERFACES:
        text = (headers(toolkit) / header).read_text()
        names = re.findall(r"\bPFN_(cu\w+?)(?:_v\d)?_v(\d{4,5})(?:_(pt[sd][sz]))?\b", text)
        found |= {(name, int(version), twin.upper() or "NONE") for name, version, twin in names}
    return frozenset(found)
