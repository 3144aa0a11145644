"""Tests that prototypes, structure layouts and values in the shim equal those of two CUDA toolkits."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from .api_tables import SHIM, each_toolkit, headers, prototypes, rows


def compiled(source: str, toolkit: int, folder: Path) -> list[str]:
    """Compile a source, and return the texts of the static assertions that do not hold."""
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

# Types with the same layout under another name, as the test of layouts proves.
SAME_LAYOUT = {"CUDA_MEMCPY3D_PEER": "CUDA_MEMCPY3D"}


@each_toolkit
def test_prototypes_match_the_header(toolkit: int, tmp_path: Path) -> None:
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


# Names of the shim, and after "=" the header's name if it differs. Only fields that the shim reads need to be here.
_MEMCPY = "src_x=srcXInBytes src_y=srcY src_type=srcMemoryType src_host=srcHost src_device=srcDevice src_array=srcArray"
_MEMCPY += " src_pitch=srcPitch width=WidthInBytes height=Height " + re.sub(r"\bsrc", "dst", _MEMCPY)
_MEMCPY += " dst_pitch=dstPitch"
_MEMCPY3D = (
    _MEMCPY + " src_z=srcZ src_level=srcLOD src_height=srcHeight dst_z=dstZ dst_level=dstLOD dst_height=dstHeight"
)
_MEMCPY3D += " depth=Depth"
_ARRAY = "width=Width height=Height format=Format channels=NumChannels"
_GRID = "grid[0]=gridDimX grid[1]=gridDimY grid[2]=gridDimZ block[0]=blockDimX block[1]=blockDimY block[2]=blockDimZ"
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
    "CUmemPoolProps": "type=allocType handle_types=handleTypes location",
    "CUcheckpointLockArgs": "timeout_ms=timeoutMs reserved0",
    "CUcheckpointCheckpointArgs": "",
    "CUcheckpointUnlockArgs": "",
}
SINCE_CUDA_13 = {
    "CUcheckpointGpuPair": "old_uuid=oldUuid new_uuid=newUuid",
    "CUcheckpointRestoreArgs": "pairs=gpuPairs pair_count=gpuPairsCount",
}


TYPES, CONSTANTS = ((SHIM / "driver" / name).read_text() for name in ("cuda_types.h", "cuda_abi.h"))


def our_abi() -> str:
    """Return both headers of the shim in one text, with a prefix on every name that the toolkit's header has too."""
    return re.sub(r"\bCU(?=\w)", "ourCU", TYPES + CONSTANTS.replace('#include "driver/cuda_types.h"', ""))


def our_constants() -> list[str]:
    enums = re.findall(r"enum \{(.*?)\}", CONSTANTS, re.DOTALL)
    values = [name for body in enums for name in re.findall(r"\bCU\w+", body)]
    return values + re.findall(r"#define (CU\w+)", CONSTANTS)


@each_toolkit
def test_layouts_and_values_match_the_header(toolkit: int, tmp_path: Path) -> None:
    layouts = LAYOUTS | SINCE_CUDA_13
    named = {name.split(":")[0] for name in layouts} | {"CUmemcpy3DOperand"}
    assert set(re.findall(r"^} (CU\w+);", TYPES, re.MULTILINE)) <= named
    lines = ["#define __CUDA_API_VERSION_INTERNAL", "#include <cuda.h>", our_abi()]

    def must(claim: str, text: str) -> None:
        lines.append(f'_Static_assert({claim}, "{text}");')

    for names, fields in (layouts if toolkit >= 13 else LAYOUTS).items():
        name, real = names.split(":") if ":" in names else (names, names)
        must(f"sizeof(our{name}) == sizeof({real})", f"the size of {real}")
        for field in fields.split():
            ours, theirs = field.split("=") if "=" in field else (field, field)
            a, b = f"((our{name} *)0)->{ours}", f"(({real} *)0)->{theirs}"
            must(f"__builtin_offsetof(our{name}, {ours}) == __builtin_offsetof({real}, {theirs})", f"{real}.{theirs}")
            must(f"sizeof({a}) == sizeof({b})", f"{real}.{theirs} in size")
    for name in re.findall(r"^typedef (?:unsigned |long |int )+(CU\w+);", TYPES, re.MULTILINE):
        must(f"sizeof(our{name}) == sizeof({name}) && (our{name})-1 < 0 == ({name})-1 < 0 || sizeof({name}) == 4", name)
    constants = our_constants()
    assert len(constants) > 20
    for constant in constants:
        must(f"(long)our{constant} == (long){constant}", constant)
    assert compiled("\n".join(lines), toolkit, tmp_path) == []
