"""`jupyter gpushare kernelspec install|list|remove`: shared variants of installed kernels, in any language.

A variant keeps all that the original kernelspec says. It is shared by our provisioner, and where front ends
ignore provisioners by its argv, which starts with our launcher.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from .. import launcher
from ..config import quota_options

PROVISIONER = "gpushare-provisioner"
SUFFIX = "-gpushare"
_LOCAL_PROVISIONERS = ("", "local-provisioner", PROVISIONER)
_METADATA_KEY = "gpushare"  # key in the metadata of a variant: {"variant_of": name}


class KernelSpecError(Exception):
    """Something cannot be installed or removed; the message says what to do instead."""


class InstalledSpec(NamedTuple):
    """An installed kernelspec, as it lies on disk."""

    name: str
    directory: Path
    content: dict[str, Any]

    @property
    def shared(self) -> bool:
        return _provisioner_of(self.content) == PROVISIONER

    @property
    def variant_of(self) -> str:
        """The original's name; "" for kernelspecs that `install` did not make."""
        return str(self.content.get("metadata", {}).get(_METADATA_KEY, {}).get("variant_of", ""))


def installed_specs() -> dict[str, InstalledSpec]:
    """All installed kernelspecs by name. Also those that jupyter_client hides, such as ones without a provisioner."""
    from jupyter_client.kernelspec import KernelSpecManager

    found = {}
    manager = KernelSpecManager()
    for name, directory in sorted(manager.find_kernel_specs().items()):
        file = Path(directory) / "kernel.json"
        try:
            # jupyter_client makes up python3 where ipykernel's kernelspec is not installed.
            content = json.loads(file.read_text("utf-8")) if file.exists() else manager.get_kernel_spec(name).to_dict()
        except (OSError, ValueError, KeyError):
            continue
        found[name] = InstalledSpec(name, Path(directory), content)
    return found


def make_variant(
    original: InstalledSpec, *, display_name: str = "", gpus: int = 1, memory_mode: str = "", quota: dict[str, Any]
) -> dict[str, Any]:
    """The kernel.json of a shared variant. Raises ValueError on bad values, Problem if it can't be shared."""
    provisioner = _provisioner_of(original.content)
    if provisioner not in _LOCAL_PROVISIONERS:
        raise KernelSpecError(f"{original.name!r} is started by {provisioner!r}, which can't be combined with sharing")
    text = quota_options.quota_text(**quota)
    config: dict[str, Any] = {key: value for key, value in quota.items() if value not in (None, "")}
    options = ["--quota", text] if text else []
    if gpus != 1:
        config["gpus"] = gpus
        options += ["--gpus", str(gpus)]
    if quota_options.parse_memory_mode(memory_mode):
        config["memory_mode"] = memory_mode
        options += ["--memory-mode", memory_mode]
    content = json.loads(json.dumps(original.content))
    content["argv"] = [sys.executable, "-c", launcher.START, *options, "--", *original.content["argv"]]
    content["display_name"] = display_name or f"{original.content.get('display_name', original.name)} (shared GPU)"
    content.setdefault("metadata", {}).update(
        {
            "kernel_provisioner": {"provisioner_name": PROVISIONER, "config": config},
            _METADATA_KEY: {"variant_of": original.name},
        }
    )
    return dict(content)


def install(
    original: InstalledSpec,
    content: dict[str, Any],
    *,
    name: str = "",
    user: bool = False,
    prefix: str = "",
) -> Path:
    """Install `content` with the original's logos and other files, and return where. Raises Problem."""
    from jupyter_client.kernelspec import KernelSpecManager

    name = (name or original.name + SUFFIX).lower()
    present = installed_specs().get(name)
    if present is not None and not present.shared:
        raise KernelSpecError(f"{name!r} is an unshared kernel: choose another --name")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / name
        shutil.copytree(original.directory, source)
        source.chmod(0o755)
        (source / "kernel.json").unlink(missing_ok=True)  # a link or read-only in some environments
        (source / "kernel.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        try:
            place = KernelSpecManager().install_kernel_spec(str(source), name, user=user, prefix=prefix or None)
        except (OSError, ValueError) as error:
            hint = "" if user else " (for this user alone: --user)"
            raise KernelSpecError(f"{name!r} can't be installed: {error}{hint}") from error
    return Path(place)


def remove(found: InstalledSpec) -> None:
    """Remove a variant. Raises Problem, also for kernelspecs that are not ours."""
    if not found.shared:
        raise KernelSpecError(f"{found.name!r} is not a shared kernel, so it is left alone")
    try:
        shutil.rmtree(found.directory)
    except OSError as error:
        raise KernelSpecError(f"{found.name!r} can't be removed: {error}") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Called by the command line on the parser of the `kernelspec` sub-command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="install|list|remove")
    maker = actions.add_parser("install", help="make a shared variant of an installed kernel")
    which = maker.add_mutually_exclusive_group()
    which.add_argument("--kernel", metavar="NAME", default="python3", help="the kernel to share (default python3)")
    which.add_argument("--all", action="store_true", help="every installed kernel that is not shared yet")
    maker.add_argument("--name", default="", help=f"the variant's name (default NAME{SUFFIX})")
    maker.add_argument("--display-name", default="", metavar="TEXT", help='default: "X (shared GPU)"')
    maker.add_argument("--gpus", metavar="N", type=int, default=1, help="how many devices it sees (default 1)")
    maker.add_argument("--memory-mode", metavar="MODE", default="", help="how it holds device memory")
    maker.add_argument("--memory", metavar="SIZE", help="device memory it may allocate, 8GiB or a part of it, 0.5")
    maker.add_argument(
        "--place",
        metavar="WORD=NAME",
        action="append",
        default=[],
        help="where: device=, affinity=, anti_affinity= or exclusion=; repeatable, see docs/how-to/placement.md",
    )
    maker.add_argument("--share", metavar="F", help="guaranteed fraction of the device's time, 0 to 1")
    maker.add_argument("--limit", metavar="F", help="largest fraction of it, above 0 and up to 1")
    place = maker.add_mutually_exclusive_group()
    place.add_argument("--user", action="store_true", help="install for this user")
    place.add_argument("--prefix", default="", metavar="DIR", help="install below DIR/share/jupyter/kernels")
    place.add_argument("--sys-prefix", action="store_true", help="install into this Python environment (the default)")
    lister = actions.add_parser("list", help="which kernels are shared, and which could be")
    lister.add_argument("--json", action="store_true", help="for programs")
    remover = actions.add_parser("remove", help="remove shared variants")
    which = remover.add_mutually_exclusive_group(required=True)
    which.add_argument("--kernel", metavar="NAME", help=f"the variant, or the kernel of which it is NAME{SUFFIX}")
    which.add_argument("--all", action="store_true", help="every variant that 'install' made")


def main(args: argparse.Namespace) -> int:
    """Exit status: 0 done, 1 something could not be done, 2 bad values."""
    try:
        return {"install": _install, "list": _list, "remove": _remove}[args.action](args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KernelSpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _install(args: argparse.Namespace) -> int:
    if not 1 <= args.gpus <= 64:
        raise ValueError(f"--gpus {args.gpus} is out of range: allowed are 1 to 64")
    if args.all and (args.name or args.display_name):
        raise ValueError("--name and --display-name are for one kernel, not for --all")
    known = installed_specs()
    if args.all:
        taken = {found.variant_of or found.name.removesuffix(SUFFIX) for found in known.values() if found.shared}
        chosen = [found for found in known.values() if not found.shared and found.name not in taken]
    else:
        chosen = [_find_spec(known, args.kernel)]
        if chosen[0].shared:
            raise KernelSpecError(f"{args.kernel!r} is shared already")
    quota = {"share": args.share, "limit": args.limit, "memory": args.memory, **quota_options.label_options(args.place)}
    if not args.all and _has_no_options(args) and (there := known.get(args.kernel + SUFFIX)) and _is_packaged(there):
        print(f"{there.name}: {there.content.get('display_name')!r} is in {there.directory} already")
        return 0
    failed = False
    for original in chosen:
        try:
            content = make_variant(
                original,
                display_name=args.display_name,
                gpus=args.gpus,
                memory_mode=args.memory_mode,
                quota=quota,
            )
            prefix = "" if args.user else args.prefix or sys.prefix
            place = install(original, content, name=args.name, user=args.user, prefix=prefix)
        except KernelSpecError as error:
            if not args.all:
                raise
            print(f"error: {error}", file=sys.stderr)
            failed = True
        else:
            print(f"{place.name}: {content['display_name']!r} in {place}")
    if not chosen:
        print("every installed kernel is shared already")
    return int(failed)


def _has_no_options(args: argparse.Namespace) -> bool:
    """Would the variant be the plain one, wherever it is?"""
    words = (
        args.name,
        args.display_name,
        args.memory_mode,
        args.memory,
        args.share,
        args.limit,
        args.prefix,
        args.place,
    )
    return not any(words) and not args.user and not args.sys_prefix and args.gpus == 1


def _is_packaged(found: InstalledSpec) -> bool:
    """Shared, and not by `install`: it came with this package."""
    return found.shared and not found.variant_of


def _list(args: argparse.Namespace) -> int:
    known = installed_specs()
    if args.json:
        rows = {
            found.name: {"shared": found.shared, "variant_of": found.variant_of, "directory": str(found.directory)}
            for found in known.values()
        }
        print(json.dumps(rows, indent=1))
        return 0
    width = max(map(len, known), default=0)
    for found in known.values():
        state = "shared" if found.shared else "not shared"
        state += f" (variant of {found.variant_of})" if found.variant_of else ""
        print(f"{found.name:<{width}}  {state:<12}  {found.content.get('display_name', '')}  {found.directory}")
    return 0


def _remove(args: argparse.Namespace) -> int:
    if args.all:
        while variants := [found for found in installed_specs().values() if found.variant_of]:
            _remove_each(variants)  # each may have hidden another of its name, in a folder that is looked at later
        return 0
    known = installed_specs()
    usual = known.get(args.kernel + SUFFIX)
    chosen = usual if usual and usual.variant_of == args.kernel else _find_spec(known, args.kernel)
    others = [found.name for found in known.values() if found.variant_of == args.kernel and found != chosen]
    if others and not chosen.shared:
        raise KernelSpecError(f"{args.kernel!r} has no variant of the usual name: name one of {', '.join(others)}")
    _remove_each([chosen])
    if others:
        print(f"other variants of {args.kernel} stay: {', '.join(others)}")
    return 0


def _remove_each(variants: list[InstalledSpec]) -> None:
    for found in variants:
        remove(found)
        print(f"removed {found.name} from {found.directory}")


def _find_spec(known: dict[str, InstalledSpec], name: str) -> InstalledSpec:
    if name not in known:
        raise KernelSpecError(f"no kernel {name!r} is installed: there are {', '.join(known) or 'none'}")
    return known[name]


def _provisioner_of(content: dict[str, Any]) -> str:
    return str(content.get("metadata", {}).get("kernel_provisioner", {}).get("provisioner_name", ""))
