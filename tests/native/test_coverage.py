"""Tests that the shim's tables are complete, by the driver API of two CUDA toolkits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .api_tables import (
    SHIM,
    TOOLKITS,
    each_toolkit,
    headers,
    hooked,
    lookups,
    prototypes,
    rows,
    unhooked_lines_for,
    unhooked_patterns,
    without_suffix,
)


@each_toolkit
def test_every_entry_point_is_hooked_or_unhooked_with_a_reason(toolkit: int) -> None:
    known = {without_suffix(symbol) for symbol in prototypes(toolkit)}
    symbols = set(prototypes(toolkit)) | {name for name, _, _ in lookups(toolkit) if name not in known}
    missing = sorted(symbol for symbol in symbols - hooked() if not unhooked_lines_for(symbol))
    assert not missing, f"neither in hooks.def nor in unhooked.def: {', '.join(missing)}"


@each_toolkit
def test_every_form_that_the_lookup_answers_has_its_row(toolkit: int) -> None:
    """All versions of a hooked function are hooked, with their twins for the per-thread default stream."""
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
    """Each line covers an existing symbol, and no symbol is both hooked and unhooked by name."""
    symbols = {symbol for toolkit in TOOLKITS for symbol in prototypes(toolkit)}
    symbols |= {name for toolkit in TOOLKITS for name, _, _ in lookups(toolkit)}
    covered = {line for symbol in symbols - hooked() for line in unhooked_lines_for(symbol)}
    assert [line for line in unhooked_patterns() if line not in covered] == []
    assert sorted(set(unhooked_patterns()) & hooked()) == []
    assert len(set(unhooked_patterns())) == len(unhooked_patterns())


def test_known_version_is_that_of_the_newest_toolkit() -> None:
    known = re.search(r"#define KNOWN_VERSION (\d+)", (SHIM / "driver" / "driver.h").read_text())
    real = re.search(r"#define CUDA_VERSION (\d+)", (headers(max(TOOLKITS)) / "cuda.h").read_text())
    assert known and real and known[1] == real[1]


def test_every_row_is_in_one_of_the_headers() -> None:
    symbols = {symbol for toolkit in TOOLKITS for symbol in prototypes(toolkit)}
    assert [symbol for row in rows() for symbol in row.symbols() if symbol not in symbols] == []


def test_no_entry_point_is_reported_as_unknown(stub: Any, tmp_path: Path) -> None:
    """The program looks up every symbol of both toolkits; `doctor --pid` gets only a name that neither toolkit has."""
    symbols = sorted({symbol for toolkit in TOOLKITS for symbol in prototypes(toolkit)} | {"cuUnheardOf_v2_ptsz"})
    client, process = stub(symbols)
    (tmp_path / "names").write_text(" ".join(symbols))
    client.run(f"[getattr(cuda, name) for name in open({str(tmp_path / 'names')!r}).read().split()] and None")
    process.page.control.inspect_seq = 1
    process.doorbell()
    assert process.expect("details")["unhooked"] == ["cuUnheardOf_v2_ptsz"]
