"""The shim's tables against the driver API of two CUDA toolkits: nothing has been forgotten, nothing is misread.

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
    """The folder of that toolkit's headers."""
    package = TOOLKITS[toolkit]
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        pytest.fail(f"{package} is not installed: pip install -e '.[test]'")
    return next(Path(str(file.locate())).parent for file in files if file.name == "cuda.h")


# --- what the shim has ------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    kind: str
    twin: str
    symbol: str
    base: str
    since: int
    parameters: tuple[str, ...]

    def symbols(self) -> list[str]:
        return [self.symbol] if self.twin == "NONE" else [self.symbol, f"{self.symbol}_{self.twin.lower()}"]


def split(parameters: str) -> tuple[str, ...]:
    """The types, without names and `const`."""
    found = []
    for parameter in parameters.split(","):
        text = " ".join(re.sub(r"\b(const|struct|enum)\b", "", parameter).replace("*", " * ").split())
        named = re.fullmatch(r"(.*[\w*]) (?!int\b|long\b|char\b|short\b|unsigned\b)(\w+)", text)
        found.append(named[1].strip() if named else text)
    return () if found in ([""], ["void"]) else tuple(found)


@cache
def rows() -> list[Row]:
    text = (SHIM / "hooks.def").read_text()
    found = re.findall(
        r"^(GATED|CUSTOM|USED)\((?:(\w+), )?(cu\w+),\s+(?:(cu\w+), (\d+),)?\s*\(([^()]*)\)", text, re.MULTILINE
    )
    assert len(found) == len(re.findall(r"^(?:GATED|CUSTOM|USED)\(", text, re.MULTILINE))
    return [
        Row(kind, twin or "NONE", symbol, base, int(since or 0), split(p))
        for kind, twin, symbol, base, since, p in found
    ]


@cache
def hooked() -> frozenset[str]:
    return frozenset(symbol for row in rows() if row.kind != "USED" for symbol in row.symbols())


@cache
def passed() -> list[str]:
    text = (SHIM / "passed.def").read_text()
    found = re.findall(r'^PASSED\("([\w*]+)", "[^"]+"\)$', text, re.MULTILINE)
    assert len(found) == text.count("\nPASSED(")
    return found


def bare(symbol: str) -> str:
    return re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", symbol)


def lines_for(symbol: str) -> list[str]:
    """The lines of passed.def that cover it."""
    bases = {row.base for row in rows() if row.kind != "USED"}
    names = {symbol} if bare(symbol) in bases else {symbol, bare(symbol)}
    return [line for line in passed() if any(fnmatch.fnmatchcase(name, line) for name in names)]


# --- what a toolkit has -----------------------------------------------------------------------------------------------


@cache
def preprocessed(toolkit: int, header: str) -> str:
    """All forms of all functions, whatever is the newest."""
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
    """The parameters' types of every exported symbol that cuda.h declares."""
    text = re.sub(r"static inline [^;{]*\{[^}]*\}", "", preprocessed(toolkit, "cuda.h"))
    found = re.findall(r"CUresult\s+(cu[A-Z]\w+)\s*\(([^;]*?)\);", text)
    assert len(found) > 600
    return {name: split(parameters) for name, parameters in found}


@cache
def lookups(toolkit: int) -> frozenset[tuple[str, int, str]]:
    """What cuGetProcAddress knows: name, version, twin. Of the interfaces to graphics only the names matter here."""
    found: set[tuple[str, int, str]] = set()
    for header in INTERFACES:
        text = (headers(toolkit) / header).read_text()
        names = re.findall(r"\bPFN_(cu\w+?)(?:_v\d)?_v(\d{4,5})(?:_(pt[sd][sz]))?\b", text)
        found |= {(name, int(version), twin.upper() or "NONE") for name, version, twin in names}
    return frozenset(found)


# --- tests ------------------------------------------------------------------------------------------------------------


@each_toolkit
def test_every_entry_point_is_a_row_or_is_passed_with_a_reason(toolkit: int) -> None:
    known = {bare(symbol) for symbol in prototypes(toolkit)}
    symbols = set(prototypes(toolkit)) | {name for name, _, _ in lookups(toolkit) if name not in known}
    missing = sorted(symbol for symbol in symbols - hooked() if not lines_for(symbol))
    assert not missing, f"neither in hooks.def nor in passed.def: {', '.join(missing)}"


@each_toolkit
def test_every_form_that_the_lookup_answers_has_its_row(toolkit: int) -> None:
    """Of a hooked function all versions are hooked, and the forms for the per-thread default stream."""
    known = {(row.base, row.since): row for row in rows() if row.kind != "USED"}
    bases = {base for base, _ in known}
    missing = []
    for name, version, twin in sorted(lookups(toolkit)):
        if name not in bases or name == "cuGetProcAddress":
            continue
        if twin == "NONE" and (name, version) not in known:
            missing.append(f"{name} of CUDA {version}")
        if twin != "NONE" and not any(row.base == name and row.twin == twin for row in known.values()):
            missing.append(f"{name}, {twin}")
    assert not missing, f"no row answers: {', '.join(missing)}"


def test_no_row_has_a_version_of_its_own_invention() -> None:
    real = {(name, version) for toolkit in TOOLKITS for name, version, twin in lookups(toolkit) if twin == "NONE"}
    wrong = [row.symbol for row in rows() if row.base and (row.base, row.since) not in real]
    assert wrong == []


def test_no_line_is_out_of_date() -> None:
    """Each line covers something that exists, and no symbol is both hooked and passed by name."""
    symbols = {symbol for toolkit in TOOLKITS for symbol in prototypes(toolkit)}
    symbols |= {name for toolkit in TOOLKITS for name, _, _ in lookups(toolkit)}
    covered = {line for symbol in symbols - hooked() for line in lines_for(symbol)}
    assert [line for line in passed() if line not in covered] == []
    assert sorted(set(passed()) & hooked()) == []
    assert len(set(passed())) == len(passed())


def test_the_newest_toolkit_is_the_one_that_the_shim_says_it_knows() -> None:
    said = re.search(r"#define KNOWN_VERSION (\d+)", (SHIM / "intercept.c").read_text())
    real = re.search(r"#define CUDA_VERSION (\d+)", (headers(max(TOOLKITS)) / "cuda.h").read_text())
    assert said and real and said[1] == real[1]


def compiled(source: str, toolkit: int, folder: Path) -> list[str]:
    """The texts of the static assertions that don't hold."""
    unit = folder / f"check{toolkit}.c"
    unit.write_text(source)
    command = ["cc", "-std=gnu11", "-fsyntax-only", "-fmax-errors=0", f"-I{headers(toolkit)}", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    wrong = re.findall(r'static assertion failed: "(.*)"', done.stderr)
    assert done.returncode == 0 or wrong, done.stderr
    assert not re.sub(r"^.*(static assertion failed|note:).*$", "", done.stderr, flags=re.MULTILINE).count(" error: ")
    return wrong


MATCH = """
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <stdint.h>
#define CLASS(type) __builtin_classify_type(*(type *)0)
#define INTEGER(type) (CLASS(type) == 1 && sizeof(type) <= 8)
#define SAME(ours, real, text) _Static_assert(__builtin_types_compatible_p(ours, real) || \\
    (INTEGER(ours) && INTEGER(real) && sizeof(ours) == sizeof(real)), text);
#define POINTER(real, text) _Static_assert(CLASS(real) == 5, text);
"""

# The same layout under another name: proven by the test of layouts.
SAME_LAYOUT = {"CUDA_MEMCPY3D_PEER": "CUDA_MEMCPY3D"}


@each_toolkit
def test_prototypes_are_those_of_the_header(toolkit: int, tmp_path: Path) -> None:
    real = prototypes(toolkit)
    lines, wrong = [MATCH], []
    for row in rows():
        for symbol in row.symbols():
            if symbol not in real:
                continue  # of another toolkit
            if len(row.parameters) != len(real[symbol]):
                wrong.append(f"{symbol}: {len(row.parameters)} parameters")
                continue
            for number, (ours, theirs) in enumerate(zip(row.parameters, real[symbol], strict=True), 1):
                text = f"{symbol}, parameter {number}: {ours}, really {theirs}"
                for other, same in SAME_LAYOUT.items():
                    theirs = re.sub(rf"\b{other}\b", same, theirs)
                while ours.endswith("*") and theirs.endswith("*") and ours != "void *":
                    ours, theirs = ours[:-1].strip(), theirs[:-1].strip()
                if ours == "void *":
                    lines.append(f'POINTER({theirs}, "{text}")')
                elif ours != theirs:
                    lines.append(f'SAME({ours}, {theirs}, "{text}")')
    assert wrong + compiled("\n".join(lines), toolkit, tmp_path) == []


def test_every_row_is_in_one_of_the_headers() -> None:
    symbols = {symbol for toolkit in TOOLKITS for symbol in prototypes(toolkit)}
    assert [symbol for row in rows() for symbol in row.symbols() if symbol not in symbols] == []


# Names of the shim, and of the header where they are others. Only what the shim reads needs to be here.
_MEMCPY = "src_x=srcXInBytes src_y=srcY src_type=srcMemoryType src_host=srcHost src_device=srcDevice src_array=srcArray"
_MEMCPY += " src_pitch=srcPitch width=WidthInBytes height=Height " + re.sub(r"\bsrc", "dst", _MEMCPY)
_MEMCPY += " dst_pitch=dstPitch"
_MEMCPY3D = (
    _MEMCPY + " src_z=srcZ src_level=srcLOD src_height=srcHeight dst_z=dstZ dst_level=dstLOD dst_height=dstHeight"
)
_MEMCPY3D += " depth=Depth"
_ARRAY = "width=Width height=Height format=Format channels=NumChannels"
_GRID = "grid_x=gridDimX grid_y=gridDimY grid_z=gridDimZ block_x=blockDimX block_y=blockDimY block_z=blockDimZ"
_GRID += " shared_bytes=sharedMemBytes stream=hStream"
LAYOUTS = {
    "CUuuid": "bytes",
    "CUipcMemHandle": "reserved",
    "CUmemLocation": "type id",
    "CUlaunchConfig": _GRID + " attributes=attrs attribute_count=numAttrs",
    "CUDA_KERNEL_NODE_PARAMS": _GRID.replace(" stream=hStream", "")
    + " function=func parameters=kernelParams context=ctx",
    "CUDA_MEM_ALLOC_NODE_PARAMS": "pool=poolProps access_count=accessDescCount bytes=bytesize address=dptr",
    "CUDA_GRAPH_INSTANTIATE_PARAMS": "flags stream=hUploadStream failed=hErrNode_out result=result_out",
    "CUDA_LAUNCH_PARAMS": _GRID + " function parameters=kernelParams",
    "CUDA_MEMCPY2D": _MEMCPY,
    "CUDA_MEMCPY3D": _MEMCPY3D + " src_context=reserved0 dst_context=reserved1",
    "CUDA_MEMCPY3D:CUDA_MEMCPY3D_PEER": _MEMCPY3D + " src_context=srcContext dst_context=dstContext",
    "CUDA_ARRAY_DESCRIPTOR": _ARRAY,
    "CUDA_ARRAY_DESCRIPTOR_v1": _ARRAY,
    "CUDA_ARRAY3D_DESCRIPTOR": _ARRAY + " depth=Depth flags=Flags",
    "CUDA_ARRAY3D_DESCRIPTOR_v1": _ARRAY + " depth=Depth flags=Flags",
    "CUDA_MEMCPY3D_BATCH_OP": "src dst width=extent.width height=extent.height depth=extent.depth order=srcAccessOrder",
    "CUmemAllocationProp": "type handle_types=requestedHandleTypes location win32_meta=win32HandleMetaData "
    "compression=allocFlags.compressionType rdma=allocFlags.gpuDirectRDMACapable usage=allocFlags.usage "
    "reserved=allocFlags.reserved",
    "CUmemAccessDesc": "location flags",
}


def our_abi() -> str:
    """cuda_abi.h with every name changed that the header has too."""
    return re.sub(r"\bCU(?=\w)", "ourCU", (SHIM / "cuda_abi.h").read_text())


def our_constants() -> list[str]:
    text = (SHIM / "cuda_abi.h").read_text()
    values = [name for body in re.findall(r"enum \{(.*?)\}", text, re.DOTALL) for name in re.findall(r"\bCU\w+", body)]
    return values + re.findall(r"#define (CU\w+)", text)


@each_toolkit
def test_layouts_and_values_are_those_of_the_header(toolkit: int, tmp_path: Path) -> None:
    assert set(re.findall(r"^} (CU\w+);", (SHIM / "cuda_abi.h").read_text(), re.MULTILINE)) <= {
        name.split(":")[0] for name in LAYOUTS
    } | {"CUmemcpy3DOperand"}
    lines = ["#define __CUDA_API_VERSION_INTERNAL", "#include <cuda.h>", our_abi()]

    def must(claim: str, text: str) -> None:
        lines.append(f'_Static_assert({claim}, "{text}");')

    for names, fields in LAYOUTS.items():
        name, real = names.split(":") if ":" in names else (names, names)
        must(f"sizeof(our{name}) == sizeof({real})", f"the size of {real}")
        for field in fields.split():
            ours, theirs = field.split("=") if "=" in field else (field, field)
            a, b = f"((our{name} *)0)->{ours}", f"(({real} *)0)->{theirs}"
            must(f"__builtin_offsetof(our{name}, {ours}) == __builtin_offsetof({real}, {theirs})", f"{real}.{theirs}")
            must(f"sizeof({a}) == sizeof({b})", f"{real}.{theirs} in size")
    for name in re.findall(
        r"^typedef (?:unsigned |long |int )+(CU\w+);", (SHIM / "cuda_abi.h").read_text(), re.MULTILINE
    ):
        must(f"sizeof(our{name}) == sizeof({name}) && (our{name})-1 < 0 == ({name})-1 < 0 || sizeof({name}) == 4", name)
    constants = our_constants()
    assert len(constants) > 20
    for constant in constants:
        must(f"(long)our{constant} == (long){constant}", constant)
    assert compiled("\n".join(lines), toolkit, tmp_path) == []
