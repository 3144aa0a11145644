"""Tests of the provisioner with real kernels and a real coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec
from traitlets import TraitError
from traitlets.config import Config

from jupyter_gpushare.launch import kernel_env
from jupyter_gpushare.provisioner import GpuShareProvisioner
from jupyter_gpushare.wire import messages

ENVIRONMENT = "{k: v for k, v in __import__('os').environ.items() if 'GPU' in k or k == 'LD_PRELOAD'}"


def provisioner(**config: Any) -> GpuShareProvisioner:
    spec = KernelSpec(argv=["true"], display_name="x", language="python")
    return GpuShareProvisioner(kernel_id="k1", kernel_spec=spec, **config)


def test_a_kernel_is_a_client_of_its_own(coordinator: Any, start: Any) -> None:
    notebook = start(env={"JPY_SESSION_NAME": "/home/ada/train.ipynb"})
    env = notebook.value(ENVIRONMENT)
    assert env["GPUSHARE_CLIENT"] == notebook.manager.kernel_id
    assert env["LD_PRELOAD"].startswith(str(kernel_env.SHIM))
    assert env["GPUSHARE_SIMULATE"] == "1"  # the coordinator's setting
    assert "GPUSHARE_NOTE" not in env
    assert coordinator.clients()[notebook.manager.kernel_id]["label"] == "train.ipynb"
    # The provisioner has removed the launcher, so this is the usual command line.
    command = Path(f"/proc/{notebook.pid}/cmdline").read_text().split("\0")
    assert command[1:4] == ["-m", "ipykernel_launcher", "-f"]


def test_cleaning_up_twice_or_too_early_is_harmless(coordinator: Any) -> None:
    async def clean_up() -> None:
        unstarted = provisioner()
        await unstarted.cleanup()
        await unstarted.pre_launch(env={})
        assert "k1" in coordinator.clients()
        await unstarted.cleanup(restart=True)
        assert "k1" in coordinator.clients()
        await unstarted.cleanup()
        await unstarted.cleanup()

    asyncio.run(clean_up())
    assert coordinator.clients() == {}


def test_the_kernelspecs_settings_become_the_quota(coordinator: Any, start: Any, jupyter: Path) -> None:
    (jupyter / "mine").mkdir()
    spec = json.loads((jupyter / "python3-gpushare" / "kernel.json").read_text())
    spec["metadata"]["kernel_provisioner"]["config"] = {"share": 0.5, "memory": "1GiB", "label": "mine"}
    (jupyter / "mine" / "kernel.json").write_text(json.dumps(spec))
    notebook = start("mine")
    client = coordinator.clients()[notebook.manager.kernel_id]
    assert (client["label"], client["quota"]["share"], client["quota"]["memory"]) == ("mine", 0.5, 1 << 30)
    assert notebook.value(ENVIRONMENT)["GPUSHARE_QUOTA"] == "share=0.5 memory=1GiB"


@pytest.mark.parametrize(
    ("config", "complaint"), [({"memory": "-1"}, "memory=-1"), ({"service": "vip"}, "online"), ({"gpus": 0}, "gpus")]
)
def test_invalid_settings_are_refused_with_the_allowed_values(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises((TraitError, ValueError), match=complaint):
        provisioner(**config)


def test_unknown_settings_are_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    provisioner(shares=0.5, log=logging.getLogger("test"))
    assert "shares" in caplog.text and "memory" in caplog.text


def test_the_servers_settings_apply(coordinator: Any) -> None:
    async def environment_of(config: Config) -> dict[str, str]:
        one = provisioner(config=config)
        kwargs = await one.pre_launch(env={"JPY_SESSION_NAME": "n.ipynb"})
        await one.cleanup()
        return dict(kwargs["env"])

    config = Config({"GpuShareProvisioner": {"share": 0.5}, "GpuShare": {"time_quantum": 7.0}})
    env = asyncio.run(environment_of(config))
    assert env["GPUSHARE_QUOTA"] == "share=0.5"
    assert "--GpuShare.time_quantum=7.0" in json.loads(env["GPUSHARE_COORDINATOR_ARGV"])


@pytest.mark.asyncio
async def test_kernel_starts_despite_invalid_settings_of_the_server(coordinator: Any) -> None:
    one = provisioner(config=Config({"GpuShare": {"time_quantum": -3}}))
    env = (await one.pre_launch(env={}))["env"]
    await one.cleanup()
    assert "time_quantum=-3 is out of range: allowed are 0.001 to 86400 seconds" in env["GPUSHARE_NOTE"]
    assert env["GPUSHARE_CLIENT"] == "k1"


def test_a_kernel_with_the_defaults_says_so_once_and_shares(coordinator: Any, start: Any) -> None:
    notebook = start(config=Config({"GpuShare": {"policy": "lifo"}}))
    warnings = "".join(notebook.run("pass").stderr for _ in range(2))
    expected = "gpushare: the server's settings are invalid, so the defaults apply: GpuShare.policy='lifo' is unknown"
    assert warnings.count(expected) == 1 and "does not work" not in warnings
    assert "does not work" not in str(notebook.run("%gpushare"))
    assert notebook.manager.kernel_id in coordinator.clients()


@pytest.mark.asyncio
async def test_identity_survives_being_saved_and_loaded(coordinator: Any) -> None:
    first, second = provisioner(share=0.5), provisioner()
    first.connection_info = second.connection_info = {}
    await first.pre_launch(env={})
    saved = json.loads(json.dumps(await first.get_provisioner_info()))
    await second.load_provisioner_info(saved)
    env = (await second.pre_launch(env={}))["env"]
    assert first.identity is not None
    assert (env["GPUSHARE_CLIENT"], env["GPUSHARE_TOKEN"]) == first.identity
    assert env["GPUSHARE_QUOTA"] == "share=0.5"
    await second.cleanup()


def test_kernel_starts_with_one_warning_without_a_coordinator(no_coordinator: str, start: Any) -> None:
    notebook = start()
    first = notebook.run("print('works')")
    assert first.status == "ok" and "works" in first.stdout
    warnings = first.stderr + "".join(notebook.run("pass").stderr for _ in range(3))
    assert warnings.count("GPU sharing does not work") == 1 and no_coordinator in warnings
    assert len(warnings.strip().splitlines()) == 1
    env = notebook.value(ENVIRONMENT)
    assert env["GPUSHARE_NOTE"].startswith("unreachable: ")
    assert env["GPUSHARE_CLIENT"]  # needed for turns without a coordinator


@pytest.mark.asyncio
async def test_a_coordinator_that_hangs_does_not_block_the_server(own_host: Path) -> None:
    path = str(own_host / "run" / "hanging.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(0)
        starting = asyncio.create_task(provisioner(coordinator=path, start_wait=60.0).pre_launch(env={}))
        accepted = []
        while len(accepted) < 2:  # of a probe and of the registration, which then waits
            await asyncio.sleep(0.01)
            with contextlib.suppress(BlockingIOError):
                accepted.append(listener.accept()[0])
        assert not starting.done()
        for connection in accepted:
            connection.close()
        await starting
        env = (await provisioner(coordinator=path, start_wait=0.1).pre_launch(env={}))["env"]
    assert env["GPUSHARE_NOTE"].startswith("unreachable: ")


@pytest.mark.asyncio
async def test_kernel_starts_despite_a_refusal(coordinator: Any) -> None:
    coordinator.request(messages.Register(client="k1", token="another"))
    env = (await provisioner().pre_launch(env={}))["env"]
    assert env["GPUSHARE_NOTE"].startswith("refused: ")
