"""Tests of symbol lookup through the shim, and of the symbols that the shim exports."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from ..driver_facts.harness import ROOT, simulated_driver
from ..support import sanitizers
from .conftest import HERE, NativeHost, built_program, built_shim

pytestmark = pytest.mark.skipif(bool(sanitizers.KIND), reason="a sanitizer adds symbols and lookups of its own")

TABLE = (ROOT / "native" / "shim" / "driver" / "hooks.def").read_text()
TWINS = {"PTSZ": "_ptsz", "PTDS": "_ptds"}
OTHERS = {"dlsym", "dlvsym", "sigaction", "signal"} | {
    f"gpushare_{name}" for name in ("progress", "progress_end", "step", "step_end", "version", "waits")
}
OTHERS |= {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"}


def rows() -> list[tuple[str, str, int, bool]]:
    """Return (symbol, base, since, is per-thread) of every hook, twins included."""
    found = re.findall(r"^(?:GATED|CUSTOM|LOADS|LOOKUP)\((\w+), (\w+), (\w+), (\d+),", TABLE, re.MULTILINE)
    plain = [(symbol, base, int(since), False) for _, symbol, base, since in found]
    twins = [(symbol + TWINS[t], base, int(since), True) for t, symbol, base, since in found if t in TWINS]
    return plain + twins


def exported(library: Path) -> set[str]:
    listing = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in listing.stdout.splitlines()}


def test_the_built_library_exports_the_table_and_nothing_else() -> None:
    assert TABLE.count("\nGATED(") + TABLE.count("\nCUSTOM(") > 130
    assert exported(built_shim()) == {row[0] for row in rows()} | OTHERS


def test_no_two_rows_answer_the_same_lookup() -> None:
    answers = [row[1:] for row in rows()]
    assert len(set(answers)) == len(answers)


def test_library_does_not_depend_on_the_driver() -> None:
    listing = subprocess.run(["readelf", "-d", str(built_shim())], capture_output=True, text=True, check=True).stdout
    assert "libcuda" not in listing
    assert "STATIC_TLS" in listing, "thread-local storage must be reached without a call"


def test_library_version_is_readable_without_loading() -> None:
    listing = subprocess.run(["readelf", "-p", ".gpushare.version", str(built_shim())], capture_output=True, text=True)
    in_section = re.search(r"gpushare shim [\d.]+ page \d+ wire \d+ cuda \d+", listing.stdout)
    code = f"import ctypes; f = ctypes.CDLL({str(built_shim())!r}).gpushare_version; f.restype = ctypes.c_char_p"
    done = subprocess.run(["python3", "-c", f"{code}; print(f().decode())"], capture_output=True, text=True, check=True)
    assert in_section and done.stdout.strip() == in_section[0]


def run(machine: NativeHost, program: Path, *arguments: str, **more: str) -> dict[str, str]:
    """Run a lookup program, and return, for each lookup, the library of the function."""
    environment = machine.environment(GPUSHARE_DISABLE="1", **more)
    done = subprocess.run([str(program), *arguments], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer: dict[str, str] = json.loads(done.stdout)
    return answer


def test_link_time_and_dlsym(machine: NativeHost) -> None:
    folder = simulated_driver().parent
    program = built_program("lookup.c", f"-L{folder}", "-l:libcuda.so.1", f"-Wl,-rpath,{folder}")
    found = run(machine, program)
    for way in ("link", "dlsym", "dlsym default", "dlsym twin", "getproc 1", "getproc 2"):
        assert found.pop(way) == "libgpushare.so", way
    for way in ("getproc of getproc", "getproc of getproc, old"):
        assert found.pop(way) == "libgpushare.so", way
    assert found.pop("not hooked") == "libcuda.so.1"
    assert found.pop("next") == "libcuda.so.1"
    assert found.pop("export table") == "passed"
    assert found.pop("unknown") == found.pop("null name survives") == ""
    assert found == {}


def test_next_means_what_it_means_to_the_caller(machine: NativeHost, tmp_path: Path) -> None:
    """RTLD_NEXT means the next definition after the caller's library, not after the shim."""
    source = "int which(void) { return %d; }\n#define _GNU_SOURCE\n#include <dlfcn.h>\n"
    source += 'int next%d(void) { int (*next)(void) = dlsym(RTLD_NEXT, "which"); return next ? next() : 0; }\n'
    source += 'int versioned%d(void) { return dlvsym(RTLD_NEXT, "which", "NO_SUCH_VERSION") == 0; }\n'
    for number in (1, 2):
        file = tmp_path / f"lib{number}.c"
        file.write_text(source % (number, number, number))
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(file.with_suffix(".so")), str(file)], check=True)
    main = tmp_path / "main.c"
    main.write_text(
        "#include <stdio.h>\nint next1(void), next2(void), versioned1(void);\n"
        'int main(void) { printf("%d %d %d", next1(), next2(), versioned1()); }\n'
    )
    program = tmp_path / "main"
    libraries = [str(tmp_path / f"lib{number}.so") for number in (1, 2)]
    subprocess.run(["cc", "-o", str(program), str(main), *libraries, "-ldl"], check=True)
    done = subprocess.run([str(program)], env=machine.environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "2 0 1"


def test_dlvsym_finds_only_existing_versions(machine: NativeHost, tmp_path: Path) -> None:
    """The lookup of an existing version returns the shim's function; a missing version stays unknown."""
    (tmp_path / "cuda.c").write_text("int cuInit(unsigned flags) { return 34 + (int)flags; }\n")
    (tmp_path / "versions").write_text("V1 { global: cuInit; };\n")
    main = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n#include <string.h>\nint main(void) {\n"
    main += ' void *driver = dlopen("libcuda.so.1", RTLD_NOW), *f = dlvsym(driver, "cuInit", "V1"); Dl_info info;\n'
    main += " dladdr(f, &info);\n"
    main += ' printf("%s %d", strrchr(info.dli_fname, 47) + 1, dlvsym(driver, "cuInit", "V2") != 0);\n}\n'
    (tmp_path / "main.c").write_text(main)
    soname = ["-Wl,-soname,libcuda.so.1", f"-Wl,--version-script={tmp_path / 'versions'}"]
    cuda = str(tmp_path / "libcuda.so.1")
    subprocess.run(["cc", "-shared", "-fPIC", *soname, "-o", cuda, str(tmp_path / "cuda.c")], check=True)
    subprocess.run(["cc", "-o", str(tmp_path / "main"), str(tmp_path / "main.c"), "-ldl"], check=True)
    environment = machine.environment(LD_LIBRARY_PATH=str(tmp_path))
    done = subprocess.run([str(tmp_path / "main")], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "libgpushare.so 0"


def test_other_libraries_keep_their_symbols(machine: NativeHost, tmp_path: Path) -> None:
    """A library that a program opens by name is not the driver: its functions stay, and the shim loads no driver."""
    stub = tmp_path / "stub.c"
    stub.write_text("int cuInit(unsigned flags) { return 34 + (int)flags; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "stub.so"), str(stub)], check=True)
    code = f"import ctypes; print(ctypes.CDLL({str(tmp_path / 'stub.so')!r}).cuInit(0))"
    code += "; print('libcuda' in open('/proc/self/maps').read())"
    done = subprocess.run(
        ["python3", "-c", code], env=machine.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["34", "False"]


def test_lookup_by_version_and_flag(machine: NativeHost) -> None:
    """cuGetProcAddress returns the function for each version of CUDA and each default stream."""
    driver_symbols = exported(simulated_driver())
    aliases = re.findall(r"^ALIAS\((\w+), (\d+), (\w+)\)", TABLE, re.MULTILINE)
    symbols = rows() + [(symbol, base, int(since), False) for base, since, symbol in aliases]
    cases: dict[str, str] = {}
    for base in sorted({base for _, base, _, _ in rows()}):
        own = [row for row in symbols if row[1] == base and row[0] in driver_symbols]
        versions = sorted({since for _, _, since, _ in own} | {13000})
        for version in versions if own else []:
            if version < min(since for _, _, since, _ in own):
                continue
            for flags in (0, 1, 2):
                fits = [row for row in own if row[2] <= version and (flags == 2 or not row[3])]
                best = max(fits, key=lambda row: (row[3], row[2]))
                cases[f"{base} {version} {flags}"] = best[0]
    assert len(cases) > 200
    program = built_program("lookup_version.c")
    environment = machine.environment(GPUSHARE_DISABLE="1")
    done = subprocess.run([str(program), *cases], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {case: found.get(case) for case in cases} == cases


def test_sources_name_no_cuda_header() -> None:
    for path in filter(Path.is_file, (ROOT / "native" / "shim").rglob("*")):
        assert "<cuda" not in path.read_text() and '"cuda.h"' not in path.read_text(), path
    assert (HERE / "lookup.c").exists()
