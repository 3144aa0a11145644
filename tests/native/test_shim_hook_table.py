"""Tests of the `GATED` rows of hooks.def: the columns of a row agree, and each wrapper passes the gate."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .conftest import ROOT
from .fake_coordinator import wait_until

TABLE = (ROOT / "native" / "shim" / "driver" / "hooks.def").read_text()
GATED = re.compile(r"^GATED\((\w+), (\w+), \w+, \d+,\s*\(([^()]*)\),\s*\(([^()]*)\),\s*([^,]+),", re.MULTILINE)


class Row(NamedTuple):
    twin: str
    symbol: str
    parameters: str
    arguments: str
    stream: str

    def names(self) -> list[str]:
        return [re.sub(r".*\W", "", parameter.strip()) for parameter in self.parameters.split(",")]

    def symbols(self) -> list[str]:
        return [self.symbol] if self.twin == "NONE" else [self.symbol, f"{self.symbol}_{self.twin.lower()}"]


def table() -> list[Row]:
    text = re.sub(r"config \? config->stream : DEFAULT", "config->stream", TABLE)
    rows = [Row(*(" ".join(column.split()) for column in found)) for found in GATED.findall(text)]
    assert len(rows) == TABLE.count("\nGATED(")
    return rows


def work() -> list[Row]:
    """Return the rows of calls that submit work."""
    return [row for row in table() if row.stream != "NO_STREAM"]


def test_arguments_are_the_parameters_in_their_order() -> None:
    assert [row.symbol for row in table() if row.names() != row.arguments.split(", ")] == []


def test_work_is_marked_for_the_stream_that_gets_it() -> None:
    for row in work():
        names = row.names()
        expected = "stream" if "stream" in names else "config->stream" if "config" in names else "DEFAULT"
        assert row.stream == expected, row
        assert (row.twin == "PTDS") <= (row.stream == "DEFAULT"), row


def test_each_gated_function_waits_at_the_gate(stub: Any) -> None:
    symbols = [symbol for row in work() for symbol in row.symbols()]
    client, process = stub(symbols)
    client.run("nothing = [c_uint64(0)] * 12; block = (c_uint64 * 64)()")
    assert len(symbols) > 160
    for epoch, symbol in enumerate(symbols, start=1):
        client.start(f"cuda.{symbol}(*nothing)")
        process.wait_for_waiting_thread()
        wait_until(lambda: process.page.report.waiting == 1, what=symbol)
        process.open(epoch)
        client.result()
        process.drain(epoch)
    assert process.page.report.gate_waits == len(symbols)


def test_each_call_that_needs_mapped_memory_waits_at_the_gate_while_memory_is_evicted(stub: Any) -> None:
    """Memory that is created outside of the turn is evicted until the turn. Without such memory no call waits."""
    symbols = [row.symbol for row in table() if row.stream == "NO_STREAM"]
    client, process = stub(symbols, STUB_MAPPED="1", GPUSHARE_MEMORY_MODE="swap")
    client.run("nothing = [c_uint64(0)] * 18")
    assert len(symbols) >= 28
    for epoch, symbol in enumerate(symbols, start=1):
        call = f"cuda.{symbol}(*nothing)"
        assert client.run(call) == 0
        assert client.run("create(2 << 20)") == 0
        assert client.run_at_the_gate(process, epoch, call) == 0, symbol
        assert client.run("release()") == 0
        process.drain(epoch)
    assert process.page.report.gate_waits == len(symbols)
    assert process.page.report.launches == process.page.report.copies == 0


def test_no_call_for_mapped_memory_waits_where_memory_is_never_unmapped(stub: Any) -> None:
    symbols = [row.symbol for row in table() if row.stream == "NO_STREAM"]
    client, process = stub(symbols, STUB_MANAGED="1")
    assert client.run("cuda.alloc(1 << 20)[0]") == 0
    for symbol in symbols:
        assert client.run(f"cuda.{symbol}(*[c_uint64(0)] * 18)") == 0
    assert process.page.report.gate_waits == 0
