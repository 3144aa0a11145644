"""PYTHONSTARTUP of shared kernels: runs the user's own first, then starts `%gpushare` and the cell reports.

Executed in the user's namespace, where it leaves no names behind. Does nothing outside of IPython.
"""

import contextlib


def _gpushare_startup(namespace: "dict[str, object]") -> None:
    import os
    import sys

    here = os.path.dirname(os.path.realpath(os.environ.get("PYTHONSTARTUP", "")))

    def run_chained() -> None:
        chained = os.environ.get("GPUSHARE_STARTUP_CHAIN", "")
        if not os.path.isfile(chained):
            return
        # While a startup file runs, IPython has its folder on the path: the user's file is to see its own,
        # not ours.
        folder = os.path.dirname(os.path.realpath(chained))
        replaced = sys.path[:1] == [here]
        if replaced:
            sys.path[0] = folder
        before = namespace.get("__file__")
        namespace["__file__"] = chained
        try:
            with open(chained, "rb") as file:
                exec(compile(file.read(), chained, "exec", dont_inherit=True), namespace)
        finally:
            if replaced and folder in sys.path:
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
        # `import jupyter_gpushare` is then the package that prepared this kernel. The path of the kernel may lead to
        # none, to another version, or to a clone in the current folder.
        load("jupyter_gpushare", os.path.dirname(here))
        from importlib import import_module

        name = "_gpushare_kernel"  # by itself: what is imported at the start of a kernel stays small
        load(name, here)
        import_module(name + ".session").activate(shell)

    def load(name: str, folder: str) -> None:
        """Make the package in `folder` known, unless one of that name is."""
        from importlib import util

        if name in sys.modules:
            return
        place = os.path.join(folder, "__init__.py")
        spec = util.spec_from_file_location(name, place, submodule_search_locations=[folder])
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
    finally:  # an error in the user's file is the user's to see; one in ours is not
        try:
            activate()
        except Exception as error:
            with contextlib.suppress(OSError):
                log(error)


try:
    _gpushare_startup(globals())
finally:
    del _gpushare_startup
