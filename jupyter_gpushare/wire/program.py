"""Runs a module of this very package as a program, whatever the current folder holds.

`python -m jupyter_gpushare` looks into the current folder first, which may be a clone of the sources. This file is run
by its path instead, and loads the package that it is a part of.
"""

from __future__ import annotations

import importlib.util
import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def argv(module: str, *words: str) -> list[str]:
    """The command that runs `module` of this package with this Python, as `python -m MODULE WORDS` would."""
    return [sys.executable, os.path.join(_PACKAGE, "wire", "program.py"), module, *words]


def _run() -> None:
    import runpy

    if sys.path[:1] == [os.path.dirname(os.path.realpath(__file__))]:  # where Python -P doesn't leave it out
        del sys.path[0]
    place = os.path.join(_PACKAGE, "__init__.py")
    spec = importlib.util.spec_from_file_location("jupyter_gpushare", place, submodule_search_locations=[_PACKAGE])
    assert spec is not None and spec.loader is not None
    sys.modules["jupyter_gpushare"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["jupyter_gpushare"])
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
