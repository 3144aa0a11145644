"""Tests of contexts that take a part of a device of 1 GiB, beside clients whose memory fills the device."""

from __future__ import annotations

import pytest

from .system_host import MIB, WAIT, GpuProgram, SystemHost, wait_until

CONTEXT_MIB, MODULE_MIB = 100, 4
OUT_OF_MEMORY = 2
FILL = """
def fill(size, value):
    status, array = cuda.alloc(size)
    return [status, array, status or cuda.launch('fill_f32', array, float(value), size // 4) or cuda.cuCtxSynchronize()]
"""
LIBRARIES = """
image, kernels = Path(os.environ["TEST_PTX"]).read_bytes(), []
for _ in range(8):
    library, kernel = c_void_p(), c_void_p()
    assert cuda.cuLibraryLoadData(byref(library), image, None, None, 0, None, None, 0) == 0
    assert cuda.cuLibraryGetKernel(byref(kernel), library, b"spin") == 0
    kernels.append(kernel)
def launch(kernel):
    cuda.functions["spin"] = kernel
    return cuda.spin()
"""


@pytest.fixture
def large_context_host(host: SystemHost, monkeypatch: pytest.MonkeyPatch) -> SystemHost:
    host.memory = 1 << 30
    config = host.folder / "machine.conf"
    config.write_text(
        f"[device]\nmemory = 1 GiB\ncontext_memory = {CONTEXT_MIB} MiB\nmodule_memory = {MODULE_MIB} MiB\n"
    )
    monkeypatch.setenv("GPUSHARE_SIM_CONFIG", str(config))
    host.start_coordinator(GPUSHARE_SIM_CONFIG=str(config))
    return host


def program(host: SystemHost, client: str, mode: str = "swap") -> GpuProgram:
    made = host.program(client, GPUSHARE_MEMORY_MODE=mode, GPUSHARE_SIM_CONFIG=str(host.folder / "machine.conf"))
    made.run(FILL)
    assert made.run("cuda.spin()", WAIT) == 0  # which loads the code
    return made


@pytest.mark.parametrize("mode", ["swap", "unified"])
def test_a_client_gets_a_context_on_a_full_device(large_context_host: SystemHost, mode: str) -> None:
    """The memory of the first client, which is idle, leaves as far as the second client needs room."""
    one = program(large_context_host, "one")
    assert one.run(f"fill({910 * MIB}, 7)[::2]", 3 * WAIT) == [0, 0]
    two = program(large_context_host, "two", mode)
    assert two.run(f"fill({600 * MIB}, 5)[::2]", 3 * WAIT) == [0, 0]


def test_context_memory_is_reported(large_context_host: SystemHost) -> None:
    one, two = (program(large_context_host, name) for name in ("one", "two"))
    taken = (CONTEXT_MIB + MODULE_MIB) * MIB
    wait_until(lambda: [client["context_memory"] for client in large_context_host.clients().values()] == [taken] * 2)
    assert [device["context_memory"] for device in large_context_host.status()["devices"]] == [2 * taken]
    assert large_context_host.command("status").stdout.count(f"{CONTEXT_MIB + MODULE_MIB} MiB") == 2
    assert one.run(f"fill({500 * MIB}, 7)[::2]", 3 * WAIT) == [0, 0]
    wait_until(lambda: large_context_host.page(two)["context_bytes"] == 2 * taken)
    assert "for contexts and code of all clients" in large_context_host.command("doctor", "--pid", str(one.pid)).stdout
    assert large_context_host.clients()["one"]["allocated"] == 500 * MIB


def test_a_client_near_the_bound_has_its_turns_beside_contexts(large_context_host: SystemHost) -> None:
    """The bound is 1 GiB less two contexts with their modules, and less 16 MiB."""
    one, two = (program(large_context_host, name) for name in ("one", "two"))
    taken = 2 * (CONTEXT_MIB + MODULE_MIB)
    wait_until(lambda: large_context_host.page(one)["context_bytes"] == taken * MIB)
    bound = 1024 - taken - 16
    assert one.run(f"cuda.alloc({bound + 2} << 20)[0]") == OUT_OF_MEMORY
    for _ in range(2):
        one.run(f"first = fill({bound // 2 * MIB}, 3); second = fill({bound // 2 * MIB}, 4)", 3 * WAIT)
        assert one.run("first[::2], second[::2]") == [[0, 0], [0, 0]]
        two.run(f"other = fill({600 * MIB}, 5)", 3 * WAIT)
        assert two.run("other[::2]") == [0, 0]
        assert one.run("cuda.free(first[1]), cuda.free(second[1]), cuda.spin()", 3 * WAIT) == [0, 0, 0]
        assert two.run("cuda.free(other[1])") == 0


def test_kernels_load_at_their_first_launch_on_a_full_device(large_context_host: SystemHost) -> None:
    """The code of eight libraries needs more room than beside the idle memory of another client."""
    one, two = (program(large_context_host, name) for name in ("one", "two"))
    two.run(LIBRARIES)
    taken = 2 * (CONTEXT_MIB + MODULE_MIB)
    wait_until(lambda: large_context_host.page(one)["context_bytes"] == taken * MIB)
    assert one.run(f"fill({(1024 - taken - 16) * MIB}, 7)[::2]", 3 * WAIT) == [0, 0]
    assert two.run("[launch(kernel) for kernel in kernels]", 3 * WAIT) == [0] * 8
    assert two.run("cuda.cuCtxSynchronize()", WAIT) == 0
