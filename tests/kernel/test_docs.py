"""Tests of docs/reference/notebook.md: its examples run as written, and it names every command, key and function."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jupyter_gpushare as gs
from jupyter_gpushare.kernel.client_api import QUOTA_KEYS
from jupyter_gpushare.kernel.magics import SUBCOMMANDS

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "notebook.md").read_text()


def test_examples_run_as_written(coordinator: Any, start: Any) -> None:
    notebook = start()
    printed = ""
    for example in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        ran = notebook.run(example)
        assert ran.status == "ok" and not ran.stderr, (example, ran)
        printed += ran.stdout
    (documented,) = re.findall(r"# (invalid .*)", TEXT)
    assert printed.endswith(documented + "\n")
    (returned,) = re.findall(r"gs.quota\(\)  # (.*)", TEXT)
    notebook.run("%gpushare memory=8GiB limit=0.9 class=online")
    assert notebook.value(f"gs.quota() == {returned}")
    assert notebook.value("[gs.suspend(), gs.resume()]") == [True, True]


def test_documentation_names_every_command_and_key() -> None:
    for name in SUBCOMMANDS:
        assert f"`%gpushare {name}" in TEXT
    for key in QUOTA_KEYS:
        assert f"| `{key}` |" in TEXT
    for name in gs.__all__:
        assert f"gs.{name}" in TEXT
