"""Tests of the memory that the limits of a process's cgroups leave, in versions 1 and 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpushare.coordinator.host.cgroups import MemoryCgroups
from jupyter_gpushare.coordinator.host.host_memory import available_bytes, usable_bytes

from ..support.memory_cgroup import MakeCgroup
from .cgroup_double import GIB, MIB, CgroupDouble

V1 = "9:name=systemd:/\n4:memory,hugetlb:{}\n1:cpu:/other\n0::/unified\n"
V1_MOUNTS = (
    ("cgroup", "rw,cpu", "/", "cpu"),
    ("cgroup", "rw,memory,hugetlb", "/", "memory"),
    ("cgroup2", "rw", "/", "unified"),
)


@pytest.fixture
def host(tmp_path: Path) -> CgroupDouble:
    return CgroupDouble(tmp_path)


def free(host: CgroupDouble, pid: int = 7) -> dict[str, int] | None:
    """Return the free bytes in each limited cgroup of a process, by path; None: unknown."""
    cgroups = MemoryCgroups(host.proc).of_process(pid)
    return None if cgroups is None else {cgroup.path: cgroup.free_bytes for cgroup in cgroups}


def test_every_limit_above_a_process_counts(host: CgroupDouble) -> None:
    host.add_process(7, "/users/ada/lab")
    host.set_cgroup("/", 50 * GIB, 60 * GIB)  # as in a container, whose cgroup is the root here
    host.set_cgroup("/users", 10 * GIB, 16 * GIB)
    host.set_cgroup("/users/ada", 9 * GIB)
    host.set_cgroup("/users/ada/lab", 3 * GIB, 4 * GIB)
    assert free(host) == {"/users/ada/lab": GIB, "/users": 6 * GIB, "/": 10 * GIB}


def test_process_without_a_limit_has_none(host: CgroupDouble) -> None:
    host.add_process(7, "/a")
    host.set_cgroup("/a", GIB)
    assert free(host) == {}


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, GIB),
        ({"memory_high": str(7 * GIB // 2)}, GIB // 2),
        ({"memory_high": str(8 * GIB)}, GIB),
        ({"memory_high": str(2 * GIB)}, 0),
        ({"memory_stat": f"anon 9\ninactive_file {MIB}\nactive_file {2 * MIB}\nfile {8 * MIB}"}, GIB + 3 * MIB),
        ({"memory_stat": f"inactive_file {4 * MIB}\nfile_dirty {MIB}\nfile_writeback {MIB}"}, GIB + 2 * MIB),
        ({"memory_stat": f"slab_reclaimable {MIB}\nslab_unreclaimable {MIB}\nshmem {MIB}"}, GIB + MIB),
        ({"memory_stat": f"inactive_file {MIB}\nfile_dirty {2 * MIB}"}, GIB),
        ({"memory_stat": f"inactive_file {100 * GIB}"}, 4 * GIB),
        ({"memory_stat": "inactive_file\nnonsense\ninactive_file x y"}, GIB),
        ({"memory_swap_max": "0", "memory_swap_current": "0"}, GIB),
        ({"memory_current": str(5 * GIB)}, 0),
    ],
    ids=[
        *("plain", "high", "high-above-max", "above-high", "page-cache", "dirty-pages", "slab"),
        *("only-dirty-pages", "torn-sample", "nonsense", "swap-is-no-room", "above-max"),
    ],
)
def test_free_memory_of_a_cgroup(host: CgroupDouble, files: dict[str, str], left: int) -> None:
    """Page cache makes room, and memory that must be written to disk first does not count."""
    host.add_process(7, "/a")
    host.set_cgroup("/a", 3 * GIB, 4 * GIB, **files)
    assert free(host) == {"/a": left}


def test_file_that_is_missing_or_nonsense_is_no_limit(host: CgroupDouble) -> None:
    host.add_process(7, "/a/b/c")
    host.write("/a/b/c", memory_max="nonsense", memory_current="5")
    host.write("/a/b", memory_max="5")
    host.set_cgroup("/a", 1, 3)
    assert free(host) == {"/a": 2}


def test_cgroups_of_version_1(tmp_path: Path) -> None:
    host = CgroupDouble(tmp_path, *V1_MOUNTS)
    host.add_process(7, "/docker/a", V1)
    host.set_cgroup_v1("/docker/a", 3 * GIB, 4 * GIB, memory_stat=f"inactive_file 9\ntotal_inactive_file {MIB}")
    host.set_cgroup_v1("/docker", 3 * GIB)
    assert free(host) == {"/docker/a": GIB + MIB}


def test_limit_of_memory_and_swap_counts_swapped_memory(tmp_path: Path) -> None:
    host = CgroupDouble(tmp_path, *V1_MOUNTS)
    host.add_process(7, "/a", V1)
    swap = {"memory_memsw_limit_in_bytes": str(5 * GIB), "memory_memsw_usage_in_bytes": str(9 * GIB // 2)}
    host.set_cgroup_v1("/a", 3 * GIB, 4 * GIB, **swap)
    assert free(host) == {"/a": GIB // 2}


@pytest.mark.parametrize(
    ("root", "path", "folder"),
    [
        ("/docker/a", "/docker/a", ""),
        ("/docker/a", "/docker/a/b", "b"),
        ("/docker/a", "/docker/abc", None),
        ("/docker/a", "/", None),
        ("/", "/../other", None),
        ("/..", "/../other", None),
        ("/", "relative", None),
        ("/", "/gone (deleted)", None),
    ],
)
def test_cgroup_that_is_not_mounted_here_is_unknown(tmp_path: Path, root: str, path: str, folder: str | None) -> None:
    host = CgroupDouble(tmp_path, ("cgroup2", "rw,nsdelegate", root, "with space"))
    host.add_process(7, path)
    (tmp_path / "other").mkdir()
    host.set_cgroup(folder or "", 1, 3, "with space")
    assert free(host) == (None if folder is None else {path: 2})


def test_second_mount_is_used_if_the_first_lacks_the_cgroup(tmp_path: Path) -> None:
    host = CgroupDouble(tmp_path, ("cgroup2", "rw", "/mine", "mine"), ("cgroup2", "rw", "/", "all"))
    host.add_process(7, "/theirs")
    host.set_cgroup("/theirs", 1, 3, "all")
    assert free(host) == {"/theirs": 2}


def test_process_that_cannot_be_read_is_unknown(host: CgroupDouble) -> None:
    assert free(host, 8) is None  # ended, or hidden by hidepid
    host.add_process(8, "", "nonsense")
    assert free(host, 8) is None


def test_linux_without_memory_cgroups_has_no_limit(host: CgroupDouble) -> None:
    host.add_process(7, "", "3:cpu:/a\n")
    assert free(host) == {}


def test_sample_reads_each_cgroup_once(host: CgroupDouble) -> None:
    for pid in (7, 8):
        host.add_process(pid, "/a")
    host.set_cgroup("/a", 1, 3)
    sample = MemoryCgroups(host.proc)
    first = sample.of_process(7)
    host.set_cgroup("/a", 2, 3)
    assert sample.of_process(8) == first
    assert free(host) == {"/a": 1}


def test_available_memory_is_bounded_by_cgroups(host: CgroupDouble) -> None:
    host.set_available(8 * GIB)
    host.add_process(7, "/a")
    host.set_cgroup("/a", 0, 20 * GIB)
    cgroups = MemoryCgroups(host.proc).of_process(7) or ()
    assert available_bytes(cgroups, host.proc) == 8 * GIB
    host.set_cgroup("/a", 0, 2 * GIB)
    assert available_bytes(MemoryCgroups(host.proc).of_process(7) or (), host.proc) == 2 * GIB
    (host.proc / "meminfo").write_text("nonsense")
    assert available_bytes((), host.proc) is None


@pytest.mark.parametrize(
    ("free_bytes", "on_host", "usable"),
    [(10 * GIB, 0, 8 * GIB), (5 * GIB, 5 * GIB, 8 * GIB), (200 * MIB, 0, 72 * MIB), (100 * MIB, 0, 0), (0, 0, 0)],
)
def test_part_of_the_free_memory_is_reserved(free_bytes: int, on_host: int, usable: int) -> None:
    """The reserve does not shrink while memory leaves the device, because that memory takes only the rest."""
    assert usable_bytes(free_bytes, on_host) == usable


def test_limit_of_a_real_cgroup(make_cgroup: MakeCgroup) -> None:
    outer = make_cgroup(512 * MIB)
    inner = make_cgroup(256 * MIB, outer)
    with inner.process() as pid:
        cgroups = MemoryCgroups().of_process(pid)
    assert cgroups is not None
    assert [cgroup.limit_bytes for cgroup in cgroups[:2]] == [256 * MIB, 512 * MIB]
    assert [Path(cgroup.path).name for cgroup in cgroups[:2]] == [inner.folder.name, outer.folder.name]
    assert all(0 < cgroup.free_bytes <= cgroup.limit_bytes for cgroup in cgroups)


def test_own_cgroup_can_be_read() -> None:
    if not Path("/proc/self/cgroup").exists() or not Path("/sys/fs/cgroup").is_dir():
        pytest.skip("this machine has no cgroups")
    cgroups = MemoryCgroups().of_process(os.getpid())
    assert cgroups is None or all(cgroup.free_bytes >= 0 for cgroup in cgroups)
