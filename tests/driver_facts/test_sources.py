"""Test that the docstring of each fact has its source, and whether the fact has been seen on a GPU."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

NO_FACTS = ("test_sources.py", "test_observations.py")
HERE = Path(__file__).resolve().parent
SEEN = re.compile(r"(Seen|Not so)\s+on\s+an\s+H200|Not\s+yet\s+seen")


def test_every_fact_has_its_source() -> None:
    facts = 0
    for path in sorted(HERE.glob("test_*.py")):
        if path.name in NO_FACTS:
            continue
        module = importlib.import_module(f".{path.stem}", __package__)
        for name, value in vars(module).items():
            if name.startswith("test_"):
                facts += 1
                text = value.__doc__ or ""
                assert "Source:" in text and SEEN.search(text), f"{path.name}: {name}"
    assert facts > 50
