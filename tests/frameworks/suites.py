"""Public test suites of other projects, with their versions, and the command that gets them (`make suites`)."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("GPUSHARE_TEST_SUITES") or ROOT / ".suites")
FRAMEWORK_PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"  # with PyTorch, from `make frameworks`
BUILD = ROOT / "native" / "simcudart" / "build.py"
STAND_INS = Path(os.environ.get("GPUSHARE_TEST_STAND_INS") or ROOT / "build" / "simcudart")  # of PyTorch's libraries
RUNNER = ["pytest<9", "pytest-timeout", "pytest-xdist"]  # xdist goes on after a test that ends its process


@dataclass(frozen=True)
class Suite:
    """Test suite, in an environment of its own unless it needs PyTorch."""

    requirements: list[str]
    tests: list[str]  # files and folders in `folder`, or modules if there is no repository
    min_passed: int  # without the shim; fewer passes are a fault of the environment
    seconds: float  # limit of one run, on a busy machine
    repository: str = ""  # where the suite comes from, if its package does not contain the tests
    revision: str = ""
    sources: tuple[str, ...] = ()  # folders and files of the repository
    folder: str = "."  # of the tests, in the repository
    left_out: str = ""  # by a part of the name, as of the option -k
    deselected: str = ""  # one test
    needs_pytorch: bool = False
    # Folders of the packages with the libraries that need stand-ins for NVIDIA's, and those that they open with dlopen.
    framework: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    libraries: str = ""  # folder of NVIDIA's libraries that run as they are
    headers: str = ""  # folder of CUDA, for programs that compile
    runs_contended: bool = False  # also beside a rival, and with a quota

    @property
    def version(self) -> str:
        """Text that differs if `get` has something else to install; limits and the selection of tests are no part."""
        parts = [self.requirements, self.repository, self.revision, self.sources, self.framework, self.opened]
        return repr([RUNNER, *parts])


CUDA_PYTHON = {
    "repository": "https://github.com/NVIDIA/cuda-python",
    "revision": "8eb9dc2ba180394a763d40405be4cf8865b5f8eb",  # the release of cuda.core 1.1.0
}
CUDA_PACKAGES = [
    "cuda-bindings==13.3.1",
    "cuda-core==1.1.0",
    "nvidia-cuda-nvrtc==13.3.*",
    "nvidia-nvfatbin==13.3.*",
    "nvidia-nvjitlink==13.3.*",
    "nvidia-nvvm==13.3.*",
    "cloudpickle",
    "ml-dtypes",
    "numpy",
    "psutil",
    "pytest-benchmark",
]
# The tests of cuda.core that reach the driver.
CORE_FILES = [
    "checkpoint",
    "context",
    "device",
    "event",
    "green_context",
    "helpers",
    "host",
    "launcher",
    "linker",
    "managed_memory_warning",
    "memory",
    "memory_peer_access",
    "module",
    "multiprocessing_warning",
    "stream",
    "tensor_map",
    "texture_surface",
    "utils",
    "utils_dlpack",
]
BINDINGS_FILES = [
    "basics",
    "cuda",
    "cudart",
    "interoperability",
    "kernelParams",
    "nvfatbin",
    "nvjitlink",
    "nvrtc",
    "nvvm",
    "utils",
]
# The modules of Numba's tests about memory, contexts, streams and launches.
NUMBA_MODULES = [
    "context_stack",
    "cuda_array_slicing",
    "cuda_auto_context",
    "cuda_devicerecord",
    "cuda_driver",
    "cuda_memory",
    "cuda_ndarray",
    "deallocations",
    "emm_plugins",
    "events",
    "host_alloc",
    "managed_alloc",
    "module_callbacks",
    "pinned",
    "reset_device",
    "select_device",
    "streams",
]
# The tests of Triton's launches, and of what its cache keeps.
TRITON_FILES = [
    "autotune_listener",
    "bindings",
    "build",
    "cache",
    "cache_determinism",
    "compilation_listener",
    "driver",
    "launch",
    "specialize",
    "subproc",
]
# Tests that compare results of kernels, which are undefined.
TRITON_LEFT_OUT = (
    "async_compile or constexpr_cache_invalidation_recreated or function_arguments or global_var_change or"
    " higher_order or kernel_default_arg or pre_run_hooks"
)
# The tests of CuPy that reach the runtime.
CUPY_FILES = [
    "memory_hooks_tests",
    "test_compiler.py",
    "test_device.py",
    "test_driver.py",
    "test_graph.py",
    "test_memory.py",
    "test_memory_hook.py",
    "test_nvtx.py",
    "test_pinned_memory.py",
    "test_profile.py",
    "test_runtime.py",
    "test_stream.py",
]
# Most of these tests compare results of kernels. A thread waits without end for another device. The numbers of bytes
# depend on Python's collector, and the shim gives memory that a pool has freed to other allocations (large_chunk).
CUPY_LEFT_OUT = (
    "capture_run or stream_is_capturing or fork_join or null_stream_cannot_capture or thread_local_valid or"
    " (TestUnownedMemory and test_device0) or (TestDeviceSwitch and thread_safe) or"
    " (TestMemoryAsyncPool and (bytes2 or bytes_stream or large_chunk))"
)
JAX_FILES = ["array", "array_interoperability", "device", "memories", "transfer_guard"]
JAX_LEFT_OUT = (
    "Offload or StreamAnnotation or streaming or (JaxArrayTest and (add or astype or zeros_like))"  # likewise
)
JAX_OPENED = (
    "libcublas.so.13",
    "libcublasLt.so.13",
    "libcudart.so.13",
    "libcudnn.so.9",
    "libcufft.so.12",
    "libcupti.so.13",
    "libcusolver.so.12",
    "libcusparse.so.12",
    "libnccl.so.2",
    "libnvidia-ml.so.1",
    "libnvrtc.so.13",
    "libnvshmem_host.so.3",
)

SUITES = {
    "cuda-bindings": Suite(
        CUDA_PACKAGES,
        [f"test_{name}.py" for name in BINDINGS_FILES],
        min_passed=200,
        seconds=900,
        runs_contended=True,
        sources=("cuda_bindings/tests", "cuda_python_test_helpers"),
        folder="cuda_bindings/tests",
        **CUDA_PYTHON,
    ),
    "cuda-core": Suite(
        CUDA_PACKAGES,
        ["graph", "memory", *(f"test_{name}.py" for name in CORE_FILES)],
        min_passed=900,
        seconds=2400,
        runs_contended=True,
        sources=("cuda_core/tests", "cuda_python_test_helpers"),
        folder="cuda_core/tests",
        # The test passes if the machine is busy between two launches, which compute nothing.
        deselected="test_event.py::test_timing_success",
        **CUDA_PYTHON,
    ),
    "pytorch": Suite(
        ["expecttest", "hypothesis", "psutil", "pyyaml"],
        ["test_cuda.py"],
        min_passed=75,
        seconds=1800,
        runs_contended=True,
        repository="https://github.com/pytorch/pytorch",
        revision="2236df1770800ffea5697b11b0bb0d910b2e59e1",  # PyTorch 2.6.0
        sources=("test/test_cuda.py",),
        folder="test",
        # The test reads the symbols of PyTorch's libraries, for longer than a test may take.
        deselected="test_cuda.py::TestCudaMallocAsync::test_cpp_memory_snapshot_pickle",
        needs_pytorch=True,
    ),
    "triton": Suite(
        ["expecttest", "triton==3.8.0"],
        [f"runtime/test_{name}.py" for name in TRITON_FILES],
        left_out=TRITON_LEFT_OUT,
        min_passed=140,
        seconds=900,
        repository="https://github.com/triton-lang/triton",
        revision="3bb23dde71a3679f0ae3e9c1be6dcae1f4bff462",  # where the branch of Triton 3.8 begins
        sources=("/python/test/conftest.py", "/python/test/unit/runtime"),
        folder="python/test/unit",
        needs_pytorch=True,
    ),
    "cupy": Suite(
        # The newest release that loads the runtime dynamically. NVRTC runs as it is, and needs the headers.
        ["cupy-cuda12x==12.3.0", "numpy<2", "nvidia-cuda-nvrtc-cu12==12.9.*", "nvidia-cuda-runtime-cu12==12.9.*"],
        [f"cupy_tests/cuda_tests/{name}" for name in CUPY_FILES],
        left_out=CUPY_LEFT_OUT,
        min_passed=170,
        seconds=600,
        runs_contended=True,
        repository="https://github.com/cupy/cupy",
        revision="fc5c421d842f6e90285e5aafc779b999e37ca2fe",  # CuPy 12.3.0
        sources=("/tests/conftest.py", "/tests/cupy_tests/__init__.py", "/tests/cupy_tests/cuda_tests"),
        folder="tests",
        framework=("cupy", "cupy_backends"),
        libraries="nvidia/cuda_nvrtc/lib",
        headers="nvidia/cuda_runtime",
    ),
    "jax": Suite(
        ["absl-py", "hypothesis", "jax==0.10.2", "jax-cuda13-plugin==0.10.2"],
        [f"tests/{name}_test.py" for name in JAX_FILES],
        left_out=JAX_LEFT_OUT,
        min_passed=150,
        seconds=900,
        runs_contended=True,
        repository="https://github.com/jax-ml/jax",
        revision="990e6a0b84138346e6a38785412f36356e0e5dc3",  # JAX 0.10.2
        sources=("/conftest.py", *(f"/tests/{name}_test.py" for name in JAX_FILES)),
        framework=("jax_plugins/xla_cuda13", "jax_cuda13_plugin"),
        opened=JAX_OPENED,
    ),
    "numba-cuda": Suite(
        ["cffi", "filecheck", "numba-cuda[cu12]==0.30.4", "psutil"],
        [f"numba.cuda.tests.cudadrv.test_{name}" for name in NUMBA_MODULES],
        min_passed=100,
        seconds=300,
        runs_contended=True,
    ),
}


def python(name: str) -> Path:
    """Return the Python of a suite's environment."""
    return FRAMEWORK_PYTHON if SUITES[name].needs_pytorch else FOLDER / name / "venv" / "bin" / "python"


def _packages(name: str) -> Path:
    """Return the folder of the packages in a suite's environment."""
    return next((python(name).parents[1] / "lib").glob("python*/site-packages"))


def _stand_ins(name: str) -> Path:
    return FOLDER / name / "stand-ins"


def library_path(name: str) -> list[str]:
    """Return the folders from which a suite's programs load NVIDIA's libraries, without that of the driver."""
    suite = SUITES[name]
    if suite.needs_pytorch:
        return [str(STAND_INS)]
    own = [str(_packages(name) / suite.libraries)] if suite.libraries else []
    return [*own, str(_stand_ins(name))] if suite.framework else own


def variables(name: str, cache: Path, driver: Path) -> dict[str, str]:
    """Return the variables by which a suite's programs find CUDA, the driver and their cache."""
    headers = SUITES[name].headers
    return {
        **({"CUDA_PATH": str(_packages(name) / headers)} if headers else {}),
        "CUPY_CACHE_DIR": str(cache),
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_LIBCUDA_PATH": str(driver),
    }


def arguments(name: str) -> list[str]:
    """Return the arguments of pytest that select a suite's tests, without this repository's settings of pytest."""
    suite = SUITES[name]
    return [
        "-c/dev/null",
        "--rootdir=.",
        *(["-k", f"not ({suite.left_out})"] if suite.left_out else []),
        *([f"--deselect={suite.deselected}"] if suite.deselected else []),
        *([] if suite.repository else ["--pyargs"]),
        *suite.tests,
    ]


def source(name: str) -> Path:
    """Return the folder of a suite's sources."""
    return FOLDER / name / "source"


def problem(name: str) -> str:
    """Return the reason why a suite cannot run, or nothing."""
    stamp = _stamp(name)
    if not stamp.exists():
        return f"no suite {name} in {FOLDER} (make suites)"
    if stamp.read_text() != SUITES[name].version:
        return f"the suite {name} in {FOLDER} has other versions than tests/frameworks/suites.py (make suites)"
    return ""


def _stamp(name: str) -> Path:
    return FOLDER / name / "installed"


def get(name: str) -> None:
    """Install a suite's packages and get its sources. The stamp is replaced after the last step.

    Raises CalledProcessError if a step fails.
    """
    suite = SUITES[name]
    if not python(name).exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER / name / "venv"], check=True)
    requirements = [*RUNNER, *suite.requirements]
    subprocess.run([python(name), "-m", "pip", "install", "--progress-bar", "off", *requirements], check=True)
    if suite.repository:
        git = ["git", "-C", source(name)]
        source(name).mkdir(parents=True, exist_ok=True)
        for command in (
            ["init", "-q"],
            ["sparse-checkout", "set", "--no-cone", *suite.sources],
            ["fetch", "-q", "--depth=1", "--filter=blob:none", suite.repository, suite.revision],
            ["checkout", "-q", "FETCH_HEAD"],
        ):
            subprocess.run([*git, *command], check=True)
    if suite.framework:
        _build_stand_ins(name)
    _stamp(name).write_text(suite.version)


def _build_stand_ins(name: str) -> None:
    suite = SUITES[name]
    with tempfile.TemporaryDirectory() as links:
        for folder in suite.framework:
            for library in (_packages(name) / folder).rglob("*.so*"):
                target = Path(links) / "_".join(library.relative_to(_packages(name)).parts)
                target.symlink_to(library)
        command = [sys.executable, BUILD, "--framework", links, "--output", _stand_ins(name)]
        subprocess.run([*command, "--opened", *suite.opened], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Get public test suites of other projects.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SUITES)} (default: all)")
    names = parser.parse_args().names or list(SUITES)
    if unknown := set(names) - set(SUITES):
        parser.error(f"unknown suite {unknown.pop()}; the suites are {', '.join(SUITES)}")
    failed = 0
    for name in names:
        if not problem(name):
            continue
        print(f"{name} in {FOLDER / name}")
        try:
            get(name)
        except subprocess.CalledProcessError as error:
            print(f"The suite {name} could not be had, so its test is skipped: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
