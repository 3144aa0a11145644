"""Public test suites of other projects, with their versions, and the command that gets them (`make suites`)."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("GPUSHARE_TEST_SUITES") or ROOT / ".suites")
FRAMEWORK_PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"  # with PyTorch, from `make frameworks`
RUNNER = ["pytest<9", "pytest-timeout", "pytest-xdist"]  # xdist goes on after a test that ends its process


@dataclass(frozen=True)
class Suite:
    """Test suite, in an environment of its own unless its programs need the stand-ins for NVIDIA's libraries."""

    requirements: list[str]
    tests: list[str]  # files and folders in `folder`, or modules
    min_passed: int  # without the shim; fewer passes are a fault of the environment
    seconds: float  # limit of one run, on a busy machine
    repository: str = ""  # where the suite comes from, if its package does not contain the tests
    revision: str = ""
    sources: tuple[str, ...] = ()  # folders and files of the repository
    folder: str = "."  # of the tests, in the repository
    needs_stand_ins: bool = False


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

SUITES = {
    "cuda-bindings": Suite(
        CUDA_PACKAGES,
        [f"test_{name}.py" for name in BINDINGS_FILES],
        min_passed=200,
        seconds=600,
        sources=("cuda_bindings/tests", "cuda_python_test_helpers"),
        folder="cuda_bindings/tests",
        **CUDA_PYTHON,
    ),
    "cuda-core": Suite(
        CUDA_PACKAGES,
        ["graph", "memory", *(f"test_{name}.py" for name in CORE_FILES)],
        min_passed=900,
        seconds=1200,
        sources=("cuda_core/tests", "cuda_python_test_helpers"),
        folder="cuda_core/tests",
        **CUDA_PYTHON,
    ),
    "pytorch": Suite(
        ["expecttest", "hypothesis", "psutil", "pyyaml"],
        # The options replace this repository's settings of pytest. The test left out reads the symbols of PyTorch's
        # libraries, for longer than a test may take.
        [
            "-c/dev/null",
            "--rootdir=.",
            "test_cuda.py",
            "--deselect=test_cuda.py::TestCudaMallocAsync::test_cpp_memory_snapshot_pickle",
        ],
        min_passed=75,
        seconds=900,
        repository="https://github.com/pytorch/pytorch",
        revision="2236df1770800ffea5697b11b0bb0d910b2e59e1",  # PyTorch 2.6.0
        sources=("test/test_cuda.py",),
        folder="test",
        needs_stand_ins=True,
    ),
    "numba-cuda": Suite(
        ["cffi", "filecheck", "numba-cuda[cu12]==0.30.4", "psutil"],
        ["--pyargs", *(f"numba.cuda.tests.cudadrv.test_{name}" for name in NUMBA_MODULES)],
        min_passed=100,
        seconds=300,
    ),
}


def python(name: str) -> Path:
    """Return the Python of a suite's environment."""
    return FRAMEWORK_PYTHON if SUITES[name].needs_stand_ins else FOLDER / name / "venv" / "bin" / "python"


def source(name: str) -> Path:
    """Return the folder of a suite's sources."""
    return FOLDER / name / "source"


def problem(name: str) -> str:
    """Return the reason why a suite cannot run, or nothing."""
    stamp = _stamp(name)
    if not stamp.exists():
        return f"no suite {name} in {FOLDER} (make suites)"
    if stamp.read_text() != repr(SUITES[name]):
        return f"the suite {name} in {FOLDER} has other versions than tests/frameworks/suites.py (make suites)"
    return ""


def _stamp(name: str) -> Path:
    return FOLDER / name / "installed"


def get(name: str) -> None:
    """Install a suite's packages and get its sources.

    Raises CalledProcessError if a step fails.
    """
    suite = SUITES[name]
    _stamp(name).unlink(missing_ok=True)
    if not python(name).exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER / name / "venv"], check=True)
    packages = [*RUNNER, *suite.requirements]
    subprocess.run([python(name), "-m", "pip", "install", "--progress-bar", "off", *packages], check=True)
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
    _stamp(name).write_text(repr(suite))


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
            print(f"The suite {name} is absent, so its test is skipped: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
