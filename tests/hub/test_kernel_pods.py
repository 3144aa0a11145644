"""Tests of the Kubernetes file for kernels on nodes: valid by the schemas, and consistent with its page and the hub."""

from __future__ import annotations

import ipaddress
import re
import subprocess
from typing import Any

import pytest
import yaml
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from jupyter_gpushare.cluster.settings import GpuShareCluster

from ..support.markdown_blocks import DOCS, block
from .test_manifests import KUBERNETES, SINGLEUSER, schemas, spawned_pod, validate

PAGE = "how-to/cluster-kubernetes.md"
KERNELS = list(yaml.safe_load_all((KUBERNETES / "kernels.yaml").read_text()))
VALUES = yaml.safe_load(block(PAGE, "In the values of the hub"))["singleuser"]


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = (one for one in KERNELS if one["kind"] == kind)
    return dict(found)


def pod() -> dict[str, Any]:
    return dict(of_kind("StatefulSet")["spec"]["template"]["spec"])


def pod_names() -> list[str]:
    return [f"{of_kind('StatefulSet')['metadata']['name']}-{number}" for number in range(replicas())]


def replicas() -> int:
    return int(of_kind("StatefulSet")["spec"]["replicas"])


@schemas
@pytest.mark.parametrize("manifest", KERNELS, ids=[one["kind"] for one in KERNELS])
def test_the_manifests_are_valid(manifest: dict[str, Any]) -> None:
    validate(manifest)


def test_the_page_names_the_pods_and_an_engine(tmp_path: Any) -> None:
    (tmp_path / "page.py").write_text(block(PAGE, "In jupyter_server_config.py"))
    config = PyFileConfigLoader("page.py", str(tmp_path)).load_config()
    settings = GpuShareCluster(config=Config(config))
    assert list(settings.all_nodes) == pod_names()
    command = settings.command(pod_names()[0])
    assert command[:6] == ["kubectl", "exec", "--quiet", "--stdin", "gpushare-ada-0", "--"]


def test_the_server_may_enter_the_users_pods_only() -> None:
    for rule in of_kind("Role")["rules"]:
        assert rule["resourceNames"] == pod_names()
    (subject,) = of_kind("RoleBinding")["subjects"]
    assert subject["name"] == of_kind("ServiceAccount")["metadata"]["name"]
    assert of_kind("RoleBinding")["roleRef"]["name"] == of_kind("Role")["metadata"]["name"]


def test_one_selector_finds_the_pods_of_the_user() -> None:
    labels = of_kind("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    (rule,) = pod()["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    selectors = [
        of_kind("StatefulSet")["spec"]["selector"]["matchLabels"],
        of_kind("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        of_kind("Service")["spec"]["selector"],
        rule["labelSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    assert of_kind("StatefulSet")["spec"]["serviceName"] == of_kind("Service")["metadata"]["name"]


def test_kernel_pods_share_gpus_as_the_pods_of_users_do() -> None:
    (container,) = pod()["containers"]
    env = {one["name"]: one["value"] for one in container["env"]}
    shared = {name for name in env if name != "XDG_STATE_HOME"}
    assert {name: env[name] for name in shared} == {name: SINGLEUSER["extraEnv"][name] for name in shared}
    assert {"GPUSHARE_SOCKET", "NVIDIA_VISIBLE_DEVICES"} <= shared
    mounts = [one for one in container["volumeMounts"] if one["name"] != "home"]
    assert mounts == [one for one in SINGLEUSER["storage"]["extraVolumeMounts"] if one["name"] != "gpushare"]
    for volume in SINGLEUSER["storage"]["extraVolumes"]:
        assert volume["name"] == "gpushare" or volume in pod()["volumes"]
    assert pod()["runtimeClassName"] == SINGLEUSER["extraPodConfig"]["runtimeClassName"]


def test_the_command_of_the_page_makes_the_objects_of_another_user() -> None:
    (script,) = re.findall(r"^ *sed '(.*)' kernels.yaml", (DOCS / PAGE).read_text(), re.M)
    command = ["sed", script, str(KUBERNETES / "kernels.yaml")]
    others = list(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert [one["metadata"]["name"] for one in others] == ["gpushare-grace"] * len(KERNELS)
    assert "ada" not in re.findall(r"\w+", yaml.safe_dump(others))


def test_kernel_pods_reach_no_private_address() -> None:
    """Zero to JupyterHub keeps the pods of users from the cluster and from the metadata of the cloud in this way."""
    policy = of_kind("NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    names, others = policy["egress"]
    assert {one["port"] for one in names["ports"]} == {53} and "to" not in names
    (block_of_addresses,) = others["to"]
    excluded = [ipaddress.ip_network(one) for one in block_of_addresses["ipBlock"]["except"]]
    for private in ("10.0.0.1", "172.31.0.1", "192.168.0.1", "169.254.169.254"):
        assert any(ipaddress.ip_address(private) in network for network in excluded)


@schemas
def test_the_pod_of_the_user_reaches_the_kernel_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub gives the pod of ada the account of the role, and the domain of the service."""
    values = {"service_account": VALUES["serviceAccountName"], "extra_pod_config": VALUES["extraPodConfig"]}
    made = spawned_pod(monkeypatch, values)
    validate(made)
    assert made["spec"]["serviceAccountName"] == of_kind("ServiceAccount")["metadata"]["name"]
    assert made["spec"].get("automountServiceAccountToken", True)
    (domain,) = made["spec"]["dnsConfig"]["searches"]
    assert domain.startswith(f"{of_kind('Service')['metadata']['name']}.")
    ingress = of_kind("NetworkPolicy")["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert ingress.items() <= made["metadata"]["labels"].items()
    egress = VALUES["networkPolicy"]["egress"][0]["to"][0]["podSelector"]["matchLabels"]
    assert egress.items() <= of_kind("StatefulSet")["spec"]["template"]["metadata"]["labels"].items()
