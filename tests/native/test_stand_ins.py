"""Tests of the stand-ins for a framework that opens NVIDIA's libraries with dlopen, as JAX does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..driver_facts.harness import ROOT, environment, simulated_driver

BUILD = ROOT / "native" / "simcudart" / "build.py"
FUNCTIONS = [
    "cublasGetStatusString",
    "cublasSgemm_v2",
    "cublasLtGetStatusName",
    "cublasLtCreate",
    "cudaGetFuncBySymbol",
    "cuptiGetResultString",
    "curandCreateGenerator",
    "curandGenerateUniform",
]
OPENED = ["libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcupti.so.13", "libcurand.so.10"]
PROGRAM = """
import json
from ctypes import *

cudart, cublas, lt, cuda = map(CDLL, ["libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libcuda.so.1"])
"""
LAYOUT = """
layout, rows, batches = c_void_p(), c_uint64(), c_uint32()
lt.cublasLtMatrixLayoutCreate(byref(layout), 0, c_uint64(5), c_uint64(7), c_int64(5))
lt.cublasLtMatrixLayoutSetAttribute(layout, 5, byref(c_uint32(3)), c_size_t(4))
lt.cublasLtMatrixLayoutGetAttribute(layout, 2, byref(rows), c_size_t(8), None)
lt.cublasLtMatrixLayoutGetAttribute(layout, 5, byref(batches), c_size_t(4), None)
print(json.dumps([rows.value, batches.value]))
"""
LAUNCH = """
key, function, parameter = create_string_buffer(8), c_void_p(), c_uint64(1 << 62)
register = getattr(cudart, "__cudaRegisterFunction")
register(None, key, None, b"kernel", -1, None, None, None, None, None)
found = cudart.cudaGetFuncBySymbol(byref(function), key)
parameters = (c_void_p * 1)(cast(byref(parameter), c_void_p))
launched = cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
print(json.dumps([found, launched, cudart.cudaDeviceSynchronize()]))
"""
GENERATE = """
curand, generator, begin, end, ms = CDLL("libcurand.so.10"), c_void_p(), c_void_p(), c_void_p(), c_float()
made = curand.curandCreateGenerator(byref(generator), 100)
cudart.cudaDeviceSynchronize()
cuda.cuEventCreate(byref(begin), 0)
cuda.cuEventCreate(byref(end), 0)
cuda.cuEventRecord(begin, None)
generated = curand.curandGenerateUniform(generator, c_void_p(0), c_size_t(0))
cuda.cuEventRecord(end, None)
cuda.cuEventSynchronize(end)
cuda.cuEventElapsedTime(byref(ms), begin, end)
print(json.dumps([made, generated, ms.value > 40]))
"""


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with stand-ins for a framework that has the names of functions as texts only."""
    folder = tmp_path_factory.mktemp("framework")
    texts = "".join(f"\\0{name}" for name in FUNCTIONS)
    (folder / "framework.c").write_text(f'const char texts[] = "{texts}";')
    subprocess.run(["cc", "-shared", "-o", folder / "framework.so", folder / "framework.c"], check=True)
    command = [sys.executable, BUILD, "--framework", folder, "--output", folder / "out", "--opened", *OPENED]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "out"


def result(stand_ins: Path, folder: Path, code: str, kernel_ns: str = "1000") -> object:
    path = f"{stand_ins}:{simulated_driver().parent}"
    env = environment(folder / "devices", GPUSHARE_SIM_KERNEL_NS=kernel_ns) | {"LD_LIBRARY_PATH": path}
    done = subprocess.run([sys.executable, "-c", PROGRAM + code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("function", ["cublas.cublasGetStatusString", "lt.cublasLtGetStatusName"])
def test_the_name_of_a_status_is_a_text(stand_ins: Path, tmp_path: Path, function: str) -> None:
    code = f"{function}.restype = c_char_p; print(json.dumps({function}(15).decode()))"
    assert result(stand_ins, tmp_path, code) == "not simulated"


def test_cupti_names_its_refusal(stand_ins: Path, tmp_path: Path) -> None:
    code = "text = c_char_p(); failed = CDLL('libcupti.so.13').cuptiGetResultString(27, byref(text))"
    assert result(stand_ins, tmp_path, f"{code}; print(json.dumps([failed, text.value.decode()]))") == [
        0,
        "not simulated",
    ]


def test_cublaslt_makes_a_handle(stand_ins: Path, tmp_path: Path) -> None:
    code = "handle = c_void_p(); print(json.dumps([lt.cublasLtCreate(byref(handle)), bool(handle)]))"
    assert result(stand_ins, tmp_path, code) == [0, True]


def test_a_layout_keeps_its_attributes(stand_ins: Path, tmp_path: Path) -> None:
    assert result(stand_ins, tmp_path, LAYOUT) == [5, 3]


def test_the_driver_launches_a_function_of_the_program(stand_ins: Path, tmp_path: Path) -> None:
    """The function's own parameter, here 2 ** 62, is no time of the launch."""
    assert result(stand_ins, tmp_path, LAUNCH) == [0, 0, 0]


def test_random_numbers_are_a_launch(stand_ins: Path, tmp_path: Path) -> None:
    assert result(stand_ins, tmp_path, GENERATE, "50000000") == [0, 0, True]
