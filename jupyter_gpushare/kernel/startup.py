"""Startup file (PYTHONSTARTUP) of shared kernels.

The file first runs the user's own startup file, and then starts `%gpushare` and the reports of cells.
IPython executes the file in the user's namespace, so the file removes its names.
Outside IPython, only the user's file runs.
"""


def _gpushare_startup(namespace: "dict[str, object]") -> None:
    import contextlib
    import os
    import sys

    here = os.path.dirname(os.path.realpath(os.environ.get("PYTHONSTARTUP", "")))

    def run_chained() -> None:
        chained = os.environ.get("GPUSHARE_STARTUP_CHAIN", "")
        if not os.path.isfile(chained):
            return
        # While a startup file runs, IPython has the file's folder on the path.
        # The user's file must find its own folder there.
        folder = os.path.dirname(os.path.realpath(chained))
        is_replaced = sys.path[:1] == [here]
        if is_replaced:
            sys.path[0] = folder
        before = namespace.get("__file__")
        namespace["__file__"] = chained
        try:
            with open(chained, "rb") as file:
                exec(compile(file.read(), chained, "exec", dont_inherit=True), namespace)
        finally:
            if is_replaced and folder in sys.path:
                sys.path[sys.path.index(folder)] = here
            if before is None:
                namespace.pop("__file__", None)
            else:
                namespace["__file__"] = before

    def activate() -> None:
        get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
        shell = get_ipython() if get_ipython else None
        if shell is None:
            return
        # `import jupyter_gpushare` then gives the package that has prepared this kernel. The kernel's path may have
        # no such package, another version, or a clone in the current folder.
        load("jupyter_gpushare", os.path.dirname(here))
        from importlib import import_module

        # A name of its own keeps the imports at the start of a kernel small.
        name = "_gpushare_kernel"
        load(name, here)
        import_module(name + ".session").activate(shell)

    def load(name: str, folder: str) -> None:
        """Import the package in `folder` unless a package has that name already."""
        from importlib import util

        if name in sys.modules:
            return
        path = os.path.join(folder, "__init__.py")
        spec = util.spec_from_file_location(name, path, submodule_search_locations=[folder])
        assert spec is not None and spec.loader is not None
        sys.modules[name] = util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])

    def log(error: Exception) -> None:
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        default = os.path.join(state, "gpushare", os.uname().nodename, "shim.log")
        path = os.environ.get("GPUSHARE_LOG_FILE") or default
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "a") as file:
            file.write(f"startup[{os.getpid()}]: {type(error).__name__}: {error}\n")

    try:
        run_chained()
    finally:
        # The user sees errors of the user's file; errors of this file go to the log.
        try:
            activate()
        except Exception as error:
            with contextlib.suppress(OSError):
                log(error)


try:
    _gpushare_startup(globals())
finally:
    del _gpushare_startup
