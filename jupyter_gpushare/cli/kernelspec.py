"""Command `jupyter gpushare kernelspec install|list|remove`, for shared variants of installed kernels in any language.

A variant keeps the content of the original kernelspec, and adds the package's provisioner.
For front ends that ignore provisioners, the variant's argv begins with the launcher.
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
from ..config.arguments import count

PROVISIONER = "gpushare-provisioner"
REMOTE_PROVISIONER = "gpushare-remote-provisioner"  # of kernels on other hosts
SUFFIX = "-gpushare"
CLUSTER_SUFFIX = "-gpushare-cluster"
_LOCAL_PROVISIONERS = ("", "local-provisioner", PROVISIONER)
_METADATA_KEY = "gpushare"  # key in the metadata of a variant: {"variant_of": name}


class KernelSpecError(Exception):
    """Kernelspec that cannot be installed or removed; the message gives the reason."""


class InstalledSpec(NamedTuple):
    """Installed kernelspec with its folder and its kernel.json."""

    name: str
    directory: Path
    content: dict[str, Any]

    @property
    def shared(self) -> bool:
        return _provisioner_of(self.content) in (PROVISIONER, REMOTE_PROVISIONER)

    @property
    def variant_of(self) -> str:
        """Name of the original kernel, or "" for a kernelspec that `install` has not made."""
        return str(self.content.get("metadata", {}).get(_METADATA_KEY, {}).get("variant_of", ""))


def installed_specs() -> dict[str, InstalledSpec]:
    """Return all installed kernelspecs by name, also those that jupyter_client hides.

    For example, jupyter_client hides a kernelspec whose provisioner is not installed.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    found = {}
    manager = KernelSpecManager()
    for name, directory in sorted(manager.find_kernel_specs().items()):
        file = Path(directory) / "kernel.json"
        try:
            # jupyter_client provides python3 where ipykernel's kernelspec is not installed.
            content = json.loads(file.read_text("utf-8")) if file.exists() else manager.get_kernel_spec(name).to_dict()
        except (OSError, ValueError, KeyError):
            continue
        found[name] = InstalledSpec(name, Path(directory), content)
    return found


def make_variant(
    original: InstalledSpec,
    *,
    display_name: str = "",
    gpus: int = 1,
    memory_mode: str = "",
    cluster: bool = False,
    node: str = "",
    quota: dict[str, Any],
) -> dict[str, Any]:
    """Return the kernel.json of a shared variant, with `cluster` of one whose kernels start on nodes.

    Raise ValueError for invalid values, and KernelSpecError for a kernel that cannot be shared.
    """
    provisioner = _provisioner_of(original.content)
    if provisioner not in _LOCAL_PROVISIONERS:
        raise KernelSpecError(
            f"the provisioner {provisioner!r} starts {original.name!r}, and cannot be combined with GPU sharing"
        )
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
    argv = content["argv"]
    if cluster:
        if node:
            config["node"] = node
        # The environment of a node has a Python of its own.
        argv[0] = "python" if Path(argv[0]).name.startswith("python") else argv[0]
    else:
        content["argv"] = [sys.executable, "-c", launcher.START, *options, "--", *argv]
    words = "shared GPU, cluster" if cluster else "shared GPU"
    content["display_name"] = display_name or f"{original.content.get('display_name', original.name)} ({words})"
    name = REMOTE_PROVISIONER if cluster else PROVISIONER
    content.setdefault("metadata", {}).update(
        {
            "kernel_provisioner": {"provisioner_name": name, "config": config},
            _METADATA_KEY: {"variant_of": original.name},
        }
    )
    return dict(content)


def install(
    original: InstalledSpec,
    content: dict[str, Any],
    *,
    prefix: str,
    name: str,
    user: bool = False,
) -> Path:
    """Install a variant with the original's logos and other files, and return its folder. Raise KernelSpecError.

    The variant is below `prefix`, or in the user's folder if `user` is true.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    name = name.lower()
    present = installed_specs().get(name)
    if present is not None and not present.shared:
        raise KernelSpecError(f"{name!r} is the name of an unshared kernel: choose another --name")
    kernels = _kernels_folder(user, prefix)
    if _is_packaged_in(kernels / name):
        raise KernelSpecError(f"{name!r} in {kernels} belongs to the package: choose another --name or folder")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / name
        shutil.copytree(original.directory, source)
        source.chmod(0o755)
        (source / "kernel.json").unlink(missing_ok=True)  # a link or read-only in some environments
        (source / "kernel.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        try:
            folder = KernelSpecManager().install_kernel_spec(
                str(source), name, user=user, prefix=None if user else prefix
            )
        except (OSError, ValueError) as error:
            hint = "" if user else " (--user installs for this user only)"
            raise KernelSpecError(f"{name!r} cannot be installed: {error}{hint}") from error
    return Path(folder)


def _is_packaged_in(folder: Path) -> bool:
    """Return true if the folder has a shared kernel of this package, which `install` has not made."""
    try:
        content = json.loads((folder / "kernel.json").read_text("utf-8"))
        return _is_packaged(InstalledSpec(folder.name, folder, content))
    except (OSError, ValueError, AttributeError):  # no kernelspec, or an invalid one
        return False


def _kernels_folder(user: bool, prefix: str) -> Path:
    from jupyter_client.kernelspec import KernelSpecManager

    return Path(KernelSpecManager().user_kernel_dir) if user else Path(prefix) / "share" / "jupyter" / "kernels"


def remove(found: InstalledSpec) -> None:
    """Remove a variant. Raise KernelSpecError, also for a kernelspec without this package's provisioner."""
    if not found.shared:
        raise KernelSpecError(f"{found.name!r} is not a shared kernel, so it is not removed")
    try:
        shutil.rmtree(found.directory)
    except OSError as error:
        raise KernelSpecError(f"{found.name!r} cannot be removed: {error}") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="install|list|remove")
    maker = actions.add_parser("install", help="make a shared variant of an installed kernel")
    original = maker.add_mutually_exclusive_group()
    original.add_argument("--kernel", metavar="NAME", default="python3", help="original kernel (default python3)")
    original.add_argument("--all", action="store_true", help="make a variant of every kernel that has none")
    maker.add_argument(
        "--name", default="", help=f"name of the variant (default NAME{SUFFIX}, or NAME{CLUSTER_SUFFIX})"
    )
    maker.add_argument(
        "--display-name", default="", metavar="TEXT", help='display name of the variant (default "X (shared GPU)")'
    )
    maker.add_argument("--cluster", action="store_true", help="start the kernels on the nodes of c.GpuShareCluster")
    maker.add_argument("--node", metavar="NODE", help="node of the kernels; needs --cluster")
    maker.add_argument(
        "--gpus", metavar="N", type=count(1, 64), default=1, help="number of devices of a kernel (default 1)"
    )
    maker.add_argument("--memory-mode", metavar="MODE", default="", help="memory mode: unified, swap or plain")
    maker.add_argument(
        "--memory",
        metavar="SIZE",
        help="device memory that a kernel may allocate, such as 8GiB, or 0.5 for half the device",
    )
    maker.add_argument(
        "--place",
        metavar="WORD=NAME",
        action="append",
        default=[],
        help="placement: device=, affinity=, anti_affinity= or exclusion=; repeatable, see docs/how-to/placement.md",
    )
    maker.add_argument("--share", metavar="F", help="guaranteed fraction of the device's time, from 0 to 1")
    maker.add_argument("--limit", metavar="F", help="largest fraction of the device's time, above 0 and up to 1")
    folder = maker.add_mutually_exclusive_group()
    folder.add_argument("--user", action="store_true", help="install for this user")
    folder.add_argument("--prefix", default="", metavar="DIR", help="install below DIR/share/jupyter/kernels")
    folder.add_argument("--sys-prefix", action="store_true", help="install into this Python environment (the default)")
    lister = actions.add_parser("list", help="list all kernels, shared or not")
    lister.add_argument("--json", action="store_true", help="print JSON")
    remover = actions.add_parser("remove", help="remove shared variants")
    variant = remover.add_mutually_exclusive_group(required=True)
    variant.add_argument("--kernel", metavar="NAME", help=f"name of the variant, or of the original of NAME{SUFFIX}")
    variant.add_argument("--all", action="store_true", help="remove every variant that 'install' has made")


def main(args: argparse.Namespace) -> int:
    """Return the exit status: 0 for success, 1 for a failed action, 2 for invalid values."""
    try:
        return {"install": _install, "list": _list, "remove": _remove}[args.action](args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KernelSpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _install(args: argparse.Namespace) -> int:
    if args.node is not None:
        _check_node(args.node, args.cluster)
    if args.all and (args.name or args.display_name):
        raise ValueError("--name and --display-name need one kernel, so they exclude --all")
    known = installed_specs()
    if args.all:
        kind = REMOTE_PROVISIONER if args.cluster else PROVISIONER
        variants = [found for found in known.values() if _provisioner_of(found.content) == kind]
        originals = {found.variant_of or found.name.removesuffix(SUFFIX) for found in variants}
        chosen = [found for found in known.values() if not found.shared and found.name not in originals]
    else:
        chosen = [_find_spec(known, args.kernel)]
        if chosen[0].shared:
            raise KernelSpecError(f"{args.kernel!r} is shared already")
    quota = {"share": args.share, "limit": args.limit, "memory": args.memory, **quota_options.label_options(args.place)}
    prefix = args.prefix or sys.prefix
    if not args.all and _has_no_options(args) and (usual := known.get(args.kernel + SUFFIX)) and _is_packaged(usual):
        has_folder = args.user or args.prefix or args.sys_prefix
        folder = _kernels_folder(args.user, prefix) / usual.name if has_folder else usual.directory
        if _is_packaged_in(folder):
            print(f"{usual.name}: {usual.content.get('display_name')!r} is in {folder} already")
            return 0
    has_failed = False
    titles = {found.name: found.content.get("display_name") for found in known.values()}
    for original in chosen:
        try:
            content = make_variant(
                original,
                display_name=args.display_name,
                gpus=args.gpus,
                memory_mode=args.memory_mode,
                cluster=args.cluster,
                node=args.node or "",
                quota=quota,
            )
            name = (args.name or original.name + (CLUSTER_SUFFIX if args.cluster else SUFFIX)).lower()
            titles.pop(name, None)
            if content["display_name"] in titles.values() and not args.display_name:
                content["display_name"] = f"{content['display_name'].removesuffix(')')}, {name})"
            twins = [other for other, title in titles.items() if title == content["display_name"]]
            titles[name] = content["display_name"]
            folder = install(original, content, prefix=prefix, name=name, user=args.user)
        except KernelSpecError as error:
            if not args.all:
                raise
            print(f"error: {error}", file=sys.stderr)
            has_failed = True
        else:
            print(f"{folder.name}: {content['display_name']!r} in {folder}")
            if twins:
                print(f"note: {', '.join(twins)} has this display name too; --display-name gives the kernel another")
    if not chosen:
        print("every installed kernel has a shared variant already")
    return int(has_failed)


def _check_node(node: str, cluster: bool) -> None:
    """Raise ValueError for a name that is no node's, or without the option for nodes."""
    from traitlets import TraitError

    from ..cluster.settings import check_node

    if not cluster:
        raise ValueError("--node is for kernels on nodes, so it needs --cluster")
    try:
        check_node(node, "--node")
    except TraitError as error:
        raise ValueError(str(error)) from None


def _has_no_options(args: argparse.Namespace) -> bool:
    """Return true without options but a folder, so that the variant equals the variant of the package."""
    words = (
        args.name,
        args.display_name,
        args.memory_mode,
        args.memory,
        args.share,
        args.limit,
        args.place,
        args.cluster,
    )
    return not any(words) and args.gpus == 1


def _is_packaged(found: InstalledSpec) -> bool:
    """Return true for a shared kernel of this package, which `install` has not made."""
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
            # A variant can hide another variant of the same name in a later folder, so the loop repeats.
            _remove_each(variants)
        return 0
    known = installed_specs()
    usual = known.get(args.kernel + SUFFIX)
    chosen = usual if usual and usual.variant_of == args.kernel else _find_spec(known, args.kernel)
    others = [found.name for found in known.values() if found.variant_of == args.kernel and found != chosen]
    if others and not chosen.shared:
        raise KernelSpecError(
            f"{args.kernel!r} has no variant {args.kernel + SUFFIX!r}: give the name of one of its variants: "
            f"{', '.join(others)}"
        )
    _remove_each([chosen])
    if others:
        print(f"other variants of {args.kernel} remain: {', '.join(others)}")
    return 0


def _remove_each(variants: list[InstalledSpec]) -> None:
    for found in variants:
        remove(found)
        print(f"removed {found.name} from {found.directory}")


def _find_spec(known: dict[str, InstalledSpec], name: str) -> InstalledSpec:
    if name not in known:
        raise KernelSpecError(
            f"no kernel {name!r} is installed; the installed kernels are: {', '.join(known) or 'none'}"
        )
    return known[name]


def _provisioner_of(content: dict[str, Any]) -> str:
    return str(content.get("metadata", {}).get("kernel_provisioner", {}).get("provisioner_name", ""))
