"""Build of simcudart for a framework: stand-ins for the NVIDIA libraries that the framework's libraries need.

The names of the libraries and their functions come from the framework's own dynamic symbols.
A function without a body in this folder gets a body that makes one launch, or that returns "not supported".
The functions of TEXTS return a text.

    python native/simcudart/build.py --framework FOLDER [--opened FILE …] --output FOLDER

The headers of the CUDA runtime come from the package nvidia-cuda-runtime of the Python that runs this file.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Library(NamedTuple):
    """NVIDIA library: prefix of its functions, its word for "not supported", and sources of its stand-in.

    Functions that match `computed` launch a kernel on the stream of their first argument, or return `failure`.
    """

    prefix: str
    refusal: int
    sources: str = ""
    computed: str = "$"
    failure: int = 0


# In the order in which prefixes are compared, because some begin with others.
LIBRARIES = {
    "libcudart": Library("cuda|__cuda", 801, "runtime/*.c"),
    "libcublasLt": Library("cublasLt", 15, "libraries/cublaslt.c"),
    "libcublas": Library("cublas", 15, "libraries/cublas.c", "cublas([SDCZI]|Gemm|Dot)", 13),
    "libcudnn": Library("cudnn", 3000, "libraries/cudnn.c", "cudnnBatchNorm", 5000),
    "libcufft": Library("cufft", 16),
    "libcurand": Library("curand", 104, "libraries/curand.c", "curandGenerate", 201),
    "libcusparseLt": Library("cusparseLt", 10),
    "libcusparse": Library("cusparse", 10),
    "libcusolver": Library("cusolver", 9),
    "libnccl": Library("nccl|pnccl", 3),
    "libnvrtc": Library("nvrtc", 11),
    "libnvJitLink": Library("nvJitLink", 6),
    "libcupti": Library("cupti", 27, "libraries/cupti.c"),
    "libcufile": Library("cuFile", 5022),
    "libnvshmem_host": Library("nvshmem", 7),
    "libnvToolsExt": Library("nvtx", 1),
    "libnvidia-ml": Library("nvml", 3, "libraries/nvml.c"),
}
TEXTS = r"(cublas|cublasLt|cusparse|nccl|nvrtc)Get(ErrorName|ErrorString|LastError|StatusName|StatusString)$"
# Texts in a framework's library that may be names of functions.
PREFIXED = re.compile(
    rf"\0((?:{'|'.join(row.prefix for row in LIBRARIES.values())})[A-Z_x]\w+)(?=\0)".encode(), re.ASCII
)
LOADED_AT_RUN_TIME = {"libnvidia-ml": "libnvidia-ml.so.1"}


class Needs(NamedTuple):
    """Needs of a framework: file names of libraries, and functions with the versions that the framework names."""

    files: dict[str, str]
    functions: dict[str, dict[str, str]]


def run(*command: str | Path) -> str:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout


def owner(symbol: str) -> str | None:
    return next((name for name, library in LIBRARIES.items() if re.match(library.prefix, symbol)), None)


def needs_of(framework: Path, opened: list[str]) -> Needs:
    """Read the dynamic sections of all libraries in a folder.

    The framework opens the files `opened` with dlopen. The names of their functions are texts in its libraries.
    """
    lookups = {file.partition(".so")[0]: file for file in opened}
    files = LOADED_AT_RUN_TIME | lookups
    functions: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sorted(framework.glob("*.so*")):
        for file in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", path)):
            if (name := file.partition(".so")[0]) in LIBRARIES:
                files[name] = file
        for symbol in re.findall(r"^\s+U (\S+)$", run("nm", "--dynamic", "--undefined-only", path), re.MULTILINE):
            function, _, version = symbol.partition("@")
            if name := owner(function):
                functions[name][function] = version.lstrip("@")
        for text in PREFIXED.findall(path.read_bytes()) if lookups else []:
            if (name := owner(symbol := text.decode())) in lookups:
                functions[name].setdefault(symbol, "")
    return Needs(files, functions)


def compile_library(name: str, needs: Needs, headers: Path, output: Path) -> None:
    """Compile one stand-in: its own sources, and refusals of all other functions that the framework needs."""
    library, work = LIBRARIES[name], output / "build" / name
    work.mkdir(parents=True, exist_ok=True)
    sources = sorted(HERE.glob(library.sources)) if library.sources else []
    compiler = shlex.split(os.environ.get("CC") or "cc")
    flags = ["-std=gnu11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra", "-Werror"]
    includes = [f"-I{folder}" for folder in (HERE / "runtime", HERE / "libraries", headers, work, output / "build")]
    objects = [work / f"{source.stem}.o" for source in sources]
    for source, target in zip(sources, objects, strict=True):
        run(*compiler, *flags, *includes, "-c", source, "-o", target)
    defined = set(re.findall(r" [TDW] (\S+)$", run("nm", *objects), re.MULTILINE)) if objects else set()
    needed = needs.functions.get(name, {})
    rows = [row(library, function) for function in sorted(set(needed) - defined)]
    (work / "rows.c").write_text("\n".join(['#include "library.h"', *rows, ""]))
    script = version_script(needed, {symbol for symbol in defined if owner(symbol) == name or "simcudart" in symbol})
    (work / "versions").write_text(script)
    file = needs.files[name]
    links = [] if name == "libcudart" else [output / needs.files["libcudart"]]
    target = output / f".{file}"
    run(
        *(*compiler, *flags, *includes, "-shared", f"-Wl,-soname,{file}"),
        f"-Wl,--version-script={work / 'versions'}",
        *("-o", target, *objects, work / "rows.c", *links, "-ldl"),
    )
    target.replace(output / file)  # in one step, because running programs have the old file mapped
    print(f"{file}: {len(needed)} functions, {sum(text.startswith('REFUSED') for text in rows)} of them refused")


def row(library: Library, function: str) -> str:
    """Return the row of `library.h` that is the body of a function."""
    if re.match(TEXTS, function):
        return f"TEXT({function})"
    if re.match(library.computed, function):
        return f"COMPUTED({function}, {library.failure})"
    return f"REFUSED({function}, {library.refusal})"


def version_script(needed: dict[str, str], defined: set[str]) -> str:
    """Return the linker's script that exports each function with the version that the framework names."""
    by_version: dict[str, set[str]] = defaultdict(set)
    for function, version in needed.items():
        by_version[version].add(function)
    common = max(by_version, key=lambda version: len(by_version[version]), default="")
    by_version[common] |= defined - set(needed)
    unversioned = by_version.pop("", set())
    blocks = [f"{version} {{ global: {'; '.join(sorted(names))}; }};" for version, names in by_version.items()]
    if not by_version:  # the linker takes a script either with versions or without
        return f"{{ global: {'; '.join(sorted(unversioned))}; local: *; }};\n" if unversioned else "{ local: *; };\n"
    return "\n".join([*blocks[:-1], blocks[-1].replace("; };", "; local: *; };")]) + "\n"


def headers() -> Path:
    files = metadata.files("nvidia-cuda-runtime") or []
    return next(Path(str(file.locate())).parent for file in files if file.name == "cuda_runtime_api.h")


def write_error_names(headers: Path, output: Path) -> None:
    text = (headers / "driver_types.h").read_text()
    enumeration = re.search(r"enum __device_builtin__ cudaError\s*\{(.*?)\n\};", text, re.DOTALL)
    assert enumeration, "driver_types.h has another form"
    names = re.findall(r"^\s*(cuda\w+)\s*=", enumeration[1], re.MULTILINE)
    output.write_text("".join(f"ERROR({name})\n" for name in names))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", type=Path, required=True, help="the folder with the framework's libraries")
    parser.add_argument("--opened", nargs="*", default=[], help="file names of libraries that it opens with dlopen")
    parser.add_argument("--output", type=Path, required=True, help="the folder for the stand-ins")
    arguments = parser.parse_args()
    output = arguments.output.resolve()
    (output / "build").mkdir(parents=True, exist_ok=True)
    needs = needs_of(arguments.framework, arguments.opened)
    if "libcudart" not in needs.files:
        print(f"error: no library in {arguments.framework} needs the CUDA runtime", file=sys.stderr)
        return 1
    folder = headers()
    write_error_names(folder, output / "build" / "error_names.inc")
    for name in sorted(needs.files, key=lambda name: name != "libcudart"):
        try:
            compile_library(name, needs, folder, output)
        except subprocess.CalledProcessError as error:
            print(f"error: {shlex.join(error.cmd)}\n{error.stderr}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
