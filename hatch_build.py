"""Build of the native parts and of the lab extension.

The native parts are the shim, the simulated driver, the agent rule for Python and the bench program.
Hatchling runs `NativeBuildHook` for `pip install` and `python -m build`.
`make native` runs this file as a program (`python hatch_build.py`), which needs only Python and a C compiler.
`--check` compiles without output and treats every warning as an error.

The wheel's tag is `py3-none-<platform>`, because no native part links against Python.
On a machine like the build machine, any Python can use the wheel.
For an index, `auditwheel repair` replaces the tag `linux_x86_64` by a `manylinux` tag.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # this file runs as a program, with a Python without hatchling
    BuildHookInterface = object  # type: ignore[assignment,misc]

OUTPUT = Path("jupyter_gpushare/native")
LABEXTENSION = Path("jupyter_gpushare/labextension")
INSTALLER = Path("jupyter-config/labextension")  # JupyterLab reads from it how the extension was installed
KERNELSPEC = Path("jupyter_gpushare/kernelspec/python3-gpushare")

_STRICT = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]


class BuildError(Exception):
    """Error about native parts that cannot be built. The message has the remedy."""


class Program(NamedTuple):  # not a dataclass: hatchling loads this file outside of sys.modules
    """Output of one call of the compiler with all `sources` (patterns)."""

    output: str
    sources: str
    flags: str
    libraries: str
    optional: bool = False


PROGRAMS = [
    Program(
        "libgpushare.so",
        "native/shim/**/*.c",
        "-std=gnu11 -Inative/shim -O2 -g -fPIC -shared -fvisibility=hidden -ftls-model=initial-exec -pthread"
        " -Wl,-soname,libgpushare.so",
        "-ldl",
    ),
    Program(
        "simcuda/libcuda.so.1",
        "native/simcuda/**/*.c",
        "-std=gnu11 -Inative/simcuda -O2 -g -fPIC -shared -fvisibility=hidden -pthread -Wl,-soname,libcuda.so.1",
        "-ldl -lm -lrt",
    ),
    # The agent rule without the rest of the shim, for processes in Python (jupyter_gpushare/agent).
    Program(
        "libagent.so",
        "native/shim/agent/agent_step.c native/shim/agent/turn_lock.c",
        "-std=gnu11 -Inative/shim -O2 -g -fPIC -shared -Wl,-soname,libagent.so",
        "",
    ),
    Program("gpushare-bench", "native/bench/*.c", "-std=gnu11 -O2 -pthread", "-ldl", optional=True),
]

# Python reads layouts from the shim's headers, and programs load the built-in functions from PTX.
COPIES = {
    "page.h": "native/shim/base/page.h",
    "agent_step.h": "native/shim/agent/agent_step.h",
    "builtins.ptx": "native/ptx/builtins.ptx",
}


def build(root: Path) -> list[Path]:
    """Bring all files in `jupyter_gpushare/native` up to date, and return the new ones. Raises `BuildError`.

    Several builds may run at the same time, and programs may have old files mapped, so each file is replaced in
    one step.
    """
    output = root / OUTPUT
    output.mkdir(parents=True, exist_ok=True)
    with _locked(output / ".build.lock"):
        # The copies come first, because Python needs the page's layout even without a compiler.
        made = [output / name for name, source in COPIES.items() if _copy(root / source, output / name)]
        stamps = output / ".build.json"
        digests: dict[str, str] = json.loads(stamps.read_text()) if stamps.exists() else {}
        errors = []
        for program in PROGRAMS:
            try:
                command = _command(root, program)
                if command is None:
                    continue
                target = output / program.output
                digest = _digest(root, program, command)
                if target.exists() and digests.get(program.output) == digest:
                    continue
                _compile(root, command, target)
            except BuildError as error:
                errors.append(str(error))
                continue
            digests[program.output] = digest
            stamps.write_text(json.dumps(digests, indent=1))
            made.append(target)
        if errors:
            raise BuildError("\n".join(dict.fromkeys(errors)))
        return made


def check(root: Path) -> None:
    """Compile every program without output, with every warning as an error. Raises `BuildError`."""
    for program in PROGRAMS:
        command = _command(root, program)
        if command is not None:
            _run(root, [*command, *_STRICT, "-fsyntax-only"])


def _command(root: Path, program: Program) -> list[str] | None:
    """Return the compiler's command line without `-o`, or None if an optional program has no sources."""
    patterns = program.sources.split()
    sources = sorted(str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern))
    if not sources:
        if program.optional:
            return None
        raise BuildError(f"There is no {program.sources}, so {program.output} cannot be built.")
    return [*_compiler(), *program.flags.split(), *sources, *program.libraries.split()]


def _compiler() -> list[str]:
    command = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(command[0]) is None:
        raise BuildError(
            f"No C compiler: {command[0]!r} was not found, and the preloaded library is built from C."
            " Install a C compiler (Debian, Ubuntu: apt install gcc libc6-dev; Fedora: dnf install gcc),"
            " name your compiler in the environment variable CC, or install a wheel instead of the sources."
        )
    return command


def _digest(root: Path, program: Program, command: list[str]) -> str:
    """Return a digest of the command line and of every native source, with headers and tables."""
    digest = hashlib.sha256("\0".join(command).encode())
    for folder in sorted({"/".join(program.sources.split("/")[:2]), "native/shim"}):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".c", ".h", ".def"}:
                digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _compile(root: Path, command: list[str], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".build.{target.name}")
    _run(root, [*command, "-o", str(fresh)])
    fresh.replace(target)


def _run(root: Path, command: list[str]) -> None:
    print(shlex.join(command), flush=True)
    result = subprocess.run(command, cwd=root, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(result.stderr)
    if result.returncode != 0:
        raise BuildError(f"The C compiler failed ({result.returncode}):\n{shlex.join(command)}\n{result.stderr}")


def _copy(source: Path, target: Path) -> bool:
    if not source.exists() or (target.exists() and target.read_bytes() == source.read_bytes()):
        return False
    fresh = target.with_name(f".build.{target.name}")
    shutil.copyfile(source, fresh)
    fresh.replace(target)
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_labextension(target_name: str, version: str, **kwargs: Any) -> None:
    """Build the extension with jlpm if its TypeScript sources are newer; hatch-jupyter-builder calls this.

    An unpacked sdist, which has a PKG-INFO, contains the built extension and must not need Node.js.
    Modification times in an sdist cannot be compared, because not every tool restores them.
    """
    # pip writes this file through the link that `make env` and `jupyter labextension develop` make.
    (LABEXTENSION / "install.json").unlink(missing_ok=True)
    if Path("PKG-INFO").exists() and LABEXTENSION.is_dir():
        return
    from hatch_jupyter_builder.utils import npm_builder

    npm_builder(target_name, version, **kwargs)


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Build hook that hatchling calls before it packs a wheel. An sdist has the sources only."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the native parts. An "editable" `version` warns and goes on without the parts that fail."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        editable = version == "editable"
        try:
            build(root)
        except BuildError as error:
            if not editable:
                raise
            warnings.warn(f"Going on without the native parts (try `make native`): {error}", stacklevel=1)

        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        shared = {
            str(LABEXTENSION): "share/jupyter/labextensions/jupyter-gpushare",
            str(INSTALLER): "share/jupyter/labextensions/jupyter-gpushare",
            str(KERNELSPEC): "share/jupyter/kernels/python3-gpushare",
        }
        for source, target in shared.items():
            if (root / source).is_dir():
                build_data["shared_data"][source] = target
            elif not editable:
                raise BuildError(f"{source} is missing: a wheel must contain it.")


def main(arguments: list[str]) -> int:
    root = Path(__file__).resolve().parent
    try:
        if arguments == ["--check"]:
            check(root)
        elif not arguments:
            made = build(root)
            print("native:", ", ".join(str(path.relative_to(root)) for path in made) or "up to date")
        else:
            print("usage: python hatch_build.py [--check]", file=sys.stderr)
            return 2
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
