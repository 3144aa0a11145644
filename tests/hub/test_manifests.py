"""Tests of the Kubernetes files: valid by the schemas, and consistent with each other and with the package."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_gpushare import __version__
from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.coordinator.config.live_settings import LiveSettings
from jupyter_gpushare.launch import kernel_env
from jupyter_gpushare.wire import address

KUBERNETES = kernel_env.PACKAGE / "share" / "kubernetes"
COORDINATOR = list(yaml.safe_load_all((KUBERNETES / "coordinator.yaml").read_text()))
SINGLEUSER = yaml.safe_load((KUBERNETES / "values.yaml").read_text())["singleuser"]
DOCKERFILE = (KUBERNETES / "Dockerfile").read_text()
VERSIONS = ("1.28", "1.37")
# Packages of the notebook images of a hub: jupyterhub-singleuser, JupyterLab, Python kernels.
IN_EVERY_IMAGE = ("jupyterlab", "ipykernel", "notebook")
# The options of the chart that the values use, and their names in KubeSpawner.
TRAITS = {
    "initContainers": "init_containers",
    "extraEnv": "environment",
    "extraPodConfig": "extra_pod_config",
    "nodeSelector": "node_selector",
    "extraTolerations": "tolerations",
}

schemas = pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None,
    reason="needs Kubernetes' schemas: pip install 'jupyter-gpushare[hub]'",
)


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (one for one in COORDINATOR if one["kind"] == kind)
    return dict(found)


def pod() -> dict[str, Any]:
    return dict(of_kind("DaemonSet")["spec"]["template"]["spec"])


def validate(manifest: dict[str, Any]) -> None:
    import kubernetes_validate

    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


def spawned_pod(monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], user: str = "ada") -> dict[str, Any]:
    """Return the pod that KubeSpawner makes with these traits for a user, without a cluster."""
    pytest.importorskip("kubespawner", reason="needs KubeSpawner: pip install 'jupyter-gpushare[hub]'")
    from kubernetes_asyncio.client import ApiClient
    from kubespawner import KubeSpawner
    from traitlets.config import Config

    monkeypatch.setattr("kubespawner.spawner.load_config", lambda **_: None)
    values = {**values, "image": "notebook", "cmd": ["jupyterhub-singleuser"]}

    async def made() -> dict[str, Any]:
        spawner = KubeSpawner(config=Config({"KubeSpawner": values}), _mock=True)
        spawner.user.name = user
        async with ApiClient() as client:
            return dict(client.sanitize_for_serialization(await spawner.get_pod_manifest()))

    return asyncio.run(made())


def users_pod(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the pod that the chart and KubeSpawner make of the values for a user."""
    storage = SINGLEUSER["storage"]
    values = {trait: SINGLEUSER[key] for key, trait in TRAITS.items()}
    assert set(SINGLEUSER) == {*TRAITS, "storage"} and set(storage) == {"extraVolumes", "extraVolumeMounts"}
    return spawned_pod(
        monkeypatch, {**values, "volumes": storage["extraVolumes"], "volume_mounts": storage["extraVolumeMounts"]}
    )


@schemas
@pytest.mark.parametrize("manifest", COORDINATOR, ids=[one["kind"] for one in COORDINATOR])
def test_the_coordinators_manifests_are_valid(manifest: dict[str, Any]) -> None:
    validate(manifest)


@schemas
def test_the_pod_of_a_user_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    made = users_pod(monkeypatch)
    validate(made)
    mounts = {mount["name"] for mount in made["spec"]["containers"][0]["volumeMounts"]}
    assert {"gpushare", "gpushare-socket", "gpushare-locks"} <= mounts
    assert made["spec"]["runtimeClassName"] == "nvidia"


def volumes(described: dict[str, Any]) -> dict[str, str]:
    """Return the folder of the node, or "" for a volume of the pod, by the mount path of the main container."""
    kinds = {volume["name"]: volume.get("hostPath", {}).get("path", "") for volume in described["volumes"]}
    return {mount["mountPath"]: kinds[mount["name"]] for mount in described["containers"][0]["volumeMounts"]}


def test_coordinator_and_users_meet_in_the_same_folders_of_the_node() -> None:
    shared = {str(Path(address.SYSTEM_SOCKET).parent), "/dev/shm/gpushare"}
    users = {"volumes": SINGLEUSER["storage"]["extraVolumes"]}
    users["containers"] = [{"volumeMounts": SINGLEUSER["storage"]["extraVolumeMounts"]}]
    for described in (pod(), users):
        assert {path: folder for path, folder in volumes(described).items() if path in shared} == {
            path: path for path in shared
        }
    assert SINGLEUSER["extraEnv"]["GPUSHARE_SOCKET"] == address.SYSTEM_SOCKET


def test_a_users_pod_can_write_no_folder_of_the_node_but_for_locks() -> None:
    writable = {
        mount["name"] for mount in SINGLEUSER["storage"]["extraVolumeMounts"] if not mount.get("readOnly", False)
    }
    assert writable == {"gpushare-locks"}
    (folders,) = pod()["initContainers"]
    assert "install -d -m 755" in folders["command"][-1] and "1777" not in folders["command"][-1]


def test_the_coordinator_has_no_right_that_it_does_not_need() -> None:
    for container in itertools.chain(pod()["initContainers"], pod()["containers"]):
        security = container["securityContext"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert not security["allowPrivilegeEscalation"] and security["readOnlyRootFilesystem"]
        assert "privileged" not in security
    assert not pod()["automountServiceAccountToken"]


def test_container_memory_limit_is_not_the_nodes_memory() -> None:
    """The coordinator takes the limit of its cgroup for the host memory that can back evicted memory."""
    assert "limits" not in pod()["containers"][0]["resources"]


def test_coordinator_configuration_is_valid(tmp_path: Path) -> None:
    """The file has the path that the coordinator of a whole host reads, and only settings that exist."""
    (name, text), *others = of_kind("ConfigMap")["data"].items()
    assert not others
    (mount,) = (one for one in pod()["containers"][0]["volumeMounts"] if one["name"] == "config")
    assert mount["mountPath"] == f"/etc/jupyter/{name}" and mount["subPath"] == name and mount["readOnly"]
    from traitlets.config.loader import PyFileConfigLoader

    (tmp_path / name).write_text(text)
    config = PyFileConfigLoader(name, str(tmp_path)).load_config()
    assert set(config) == {"GpuShare"} and set(config.GpuShare) <= set(GpuShare.class_trait_names(config=True))
    LiveSettings(GpuShare(config=config))


def test_configuration_is_read_from_a_folder_of_root() -> None:
    """The option `--system` refuses other folders, and notebook images let a group write to /etc/jupyter."""
    assert "chmod -R go-w /etc/jupyter" in DOCKERFILE
    assert pod()["containers"][0]["args"][-1] == "--system"


def test_every_image_is_the_one_of_this_version() -> None:
    containers = [*pod()["initContainers"], *pod()["containers"], *SINGLEUSER["initContainers"]]
    assert {container["image"] for container in containers} == {f"registry.example.org/jupyter-gpushare:{__version__}"}


def needs(package: str, seen: set[str]) -> set[str]:
    """Return the packages that a package needs directly or indirectly."""
    if package not in seen:
        seen.add(package)
        for line in metadata.requires(package) or []:
            name, _, condition = line.partition(";")
            if "extra" not in condition:
                name = re.match(r"[\w.-]+", name.strip())[0].lower().replace("_", "-")  # type: ignore[index]
                try:
                    needs(name, seen)
                except metadata.PackageNotFoundError:
                    continue  # for another system or Python
    return seen


def test_a_users_pod_gets_every_package_that_its_image_may_lack() -> None:
    (line,) = re.findall(r"--target /opt/gpushare \\\n(.*?) \\\n", DOCKERFILE, re.DOTALL)
    copied = {"jupyter-gpushare", *(word for word in line.split() if not word.startswith("/"))}
    present: set[str] = set()
    for package in IN_EVERY_IMAGE:
        needs(package, present)
    assert needs("jupyter-gpushare", set()) - present <= copied


def test_user_pod_search_paths_include_the_mounted_package() -> None:
    (container,) = SINGLEUSER["initContainers"]
    assert container["command"][:3] == ["cp", "-a", "/opt/gpushare/."] and "--target /opt/gpushare" in DOCKERFILE
    assert container["volumeMounts"] == [{"name": "gpushare", "mountPath": container["command"][3]}]
    mounts = {mount["name"]: mount["mountPath"] for mount in SINGLEUSER["storage"]["extraVolumeMounts"]}
    variables = {"PYTHONPATH": "", "JUPYTER_PATH": "/share/jupyter", "JUPYTER_CONFIG_PATH": "/etc/jupyter"}
    for name, folder in variables.items():
        assert SINGLEUSER["extraEnv"][name] == mounts["gpushare"] + folder
