"""Test that the docstring of each fact has its source, and whether the fact has been seen on a GPU."""

from __future__ import annotations

import importlib
from pathlib import Path

HERE = Path(__file__).resolve().parent


def test_every_fact_has_its_source() -> None:
    facts = 0
    for path in sorted(HERE.glob("test_*.py")):
        if path == Path(__file__).resolve():
            continue
        module = importlib.import_module(f".{path.stem}", __package__)
        for name, value in vars(module).items():
            if name.startswith("test_"):
                facts += 1
                assert "Source:" in (value.__doc__ or "") and "een" in value.__doc__, f"{path.name}: {name}"
    assert facts > 50
