"""Program that runs a module of this installation of the package, independent of the current folder.

`python -m jupyter_gpushare` would prefer the package in the current folder, which may be a clone of the sources.
This file is run by its path instead, and it loads the package that contains it.
"""

from __future__ import annotations

import importlib.util
import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def argv(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `module` of this package with this Python, like `python -m MODULE ARGUMENTS`."""
    return [sys.executable, os.path.join(_PACKAGE, "wire", "program.py"), module, *arguments]


def _run() -> None:
    import runpy

    if sys.path[:1] == [os.path.dirname(os.path.realpath(__file__))]:  # unless Python runs with -P
        del sys.path[0]
    path = os.path.join(_PACKAGE, "__init__.py")
    spec = importlib.util.spec_from_file_location("jupyter_gpushare", path, submodule_search_locations=[_PACKAGE])
    assert spec is not None and spec.loader is not None
    sys.modules["jupyter_gpushare"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["jupyter_gpushare"])
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
