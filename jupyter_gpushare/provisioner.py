"""Kernel provisioner that starts shared kernels: jupyter_client's local provisioner with another environment.

A kernelspec names `gpushare-provisioner` in `metadata.kernel_provisioner`, whose `config` sets the traits below.
For all other kernels, `c.KernelProvisionerFactory.default_provisioner_name = "gpushare-provisioner"` has the same
effect.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Mapping
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Bool, CaselessStrEnum, Float, Integer, TraitError, Unicode, Union, validate

from . import launcher
from .config import quota_options, traits
from .launch import kernel_env

_QUOTA = ("share", "limit", "memory", "resident", "service", *quota_options.PLACEMENT_OPTIONS)


class GpuShareProvisioner(LocalProvisioner):
    """Provisioner of one kernel, which is one client of the coordinator.

    The client has the kernel's id, and keeps its id, token and quota when the kernel restarts.
    The provisioner keeps no connection between calls, because the blocking kernel manager runs each call in another
    event loop.
    The coordinator detects the end of a kernel by the end of the kernel's connections.
    `cleanup` only confirms the end, because jupyter_client may skip `cleanup`.
    """

    share = Float(None, allow_none=True, config=True, help="Guaranteed fraction of the device's time, from 0 to 1.")
    limit = Float(
        None, allow_none=True, config=True, help="Largest fraction of the device's time, above 0 and up to 1."
    )
    memory = Union(
        [Unicode(), Integer()],
        default_value="",
        config=True,
        help='Device memory that the kernel may allocate: bytes, a text such as "8GiB", or "0.5" for half the device.',
    )
    resident = Union(
        [Unicode(), Integer()],
        default_value="",
        config=True,
        help="Device memory that the kernel may keep on the device while other clients wait: bytes or a text.",
    )
    service = CaselessStrEnum(
        ["online", "offline"],
        None,
        allow_none=True,
        config=True,
        help="Class of service: online kernels run before offline kernels.",
    )
    device = Unicode(config=True, help="Devices for the placement: UUID, index or name, several joined by +.")
    affinity = Unicode(config=True, help="Label: kernels with the same label share a device.")
    anti_affinity = Unicode(config=True, help="Label: kernels with the same label get different devices.")
    exclusion = Unicode(config=True, help="Label: only kernels with the same label share the device.")
    gpus = Integer(1, min=1, max=64, config=True, help="Number of devices of the kernel.")
    memory_mode = Unicode(
        config=True,
        help="Memory mode of the kernel: unified, swap or plain; default: $GPUSHARE_MEMORY_MODE, else the "
        "coordinator's mode.",
    )
    label = Unicode(config=True, help="Label of the kernel in all views; default: the notebook's file name.")
    simulate = Bool(
        None,
        allow_none=True,
        config=True,
        help="Use the simulated driver; default: $GPUSHARE_SIMULATE, else the coordinator's setting.",
    )
    coordinator = Unicode(config=True, help="Socket of the coordinator; default: $GPUSHARE_SOCKET or the host's.")
    start_wait = Float(
        3.0, min=0.0, max=60.0, config=True, help="Seconds for which a starting kernel waits for a coordinator."
    )

    def __init__(self, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - set(self.trait_names()))
        for name in unknown:  # traitlets would drop these settings without a warning
            kwargs.pop(name)
        super().__init__(**kwargs)
        if unknown:
            allowed = ", ".join(sorted(type(self).class_own_traits(config=True)))
            self.log.warning("ignored unknown provisioner settings %s: allowed are %s", ", ".join(unknown), allowed)
        self.quota = quota_options.quota_text(**{name: getattr(self, name) for name in _QUOTA})
        self.identity: kernel_env.Identity | None = None
        self._registration: kernel_env.Registration | None = None
        self._label = ""

    @validate("share", "limit", "memory", "resident", "device", "affinity", "anti_affinity", "exclusion")
    def _check_quota(self, proposal: Any) -> Any:
        try:
            quota_options.quota_text(**{proposal.trait.name: proposal.value})
        except ValueError as error:
            raise TraitError(f"{type(self).__name__}.{proposal.trait.name}: {error}") from None
        return proposal.value

    @validate("memory_mode")
    def _check_memory_mode(self, proposal: Any) -> Any:
        try:
            return quota_options.parse_memory_mode(str(proposal.value))
        except ValueError as error:
            raise TraitError(f"{type(self).__name__}.memory_mode: {error}") from None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Register the client before each start and restart, within about `start_wait` seconds."""
        env = kwargs.get("env", os.environ)
        if self.identity is None:
            self.identity = kernel_env.Identity.new(self.kernel_id or "", prefix="kernel")
        settings, settings_problem = self._server_settings()
        self._label = self.label or kernel_env.label_of(env, self._kernel_name())
        register = functools.partial(
            kernel_env.register_client,
            self.identity,
            label=self._label,
            quota=self.quota,
            gpus=self.gpus,
            socket=self.coordinator or settings.coordinator or env.get("GPUSHARE_SOCKET", ""),
            simulate=self._simulate_option(settings, env),
            memory_mode=self.memory_mode or env.get("GPUSHARE_MEMORY_MODE", ""),
            settings=settings.argv(),
            wait=self.start_wait,
        )
        self._registration = await asyncio.get_running_loop().run_in_executor(None, register)
        if settings_problem and not self._registration.note:
            self._registration = self._registration._replace(note=f"refused: {settings_problem}")
        if self._registration.note:
            self.log.warning("found a fault of GPU sharing in kernel %s: %s", self.kernel_id, self._registration.note)
        kwargs = await super().pre_launch(**kwargs)
        kwargs["cmd"] = launcher.strip_wrapper(kwargs["cmd"])
        return kwargs

    def _finalize_env(self, env: dict[str, str]) -> None:
        """Add the variables of the client to the environment, which has the kernelspec's `env` already.

        The base class calls the method in `pre_launch`.
        """
        super()._finalize_env(env)
        if self.identity is None or self._registration is None:
            return
        if self.memory_mode:
            env["GPUSHARE_MEMORY_MODE"] = self.memory_mode
        prepared = kernel_env.build_environment(
            env,
            **self.identity._asdict(),
            label=self._label,
            quota=self.quota,
            python=(self.kernel_spec.language or "").lower().startswith("python"),
            **self._registration._asdict(),
        )
        env.clear()
        env.update(prepared)

    async def cleanup(self, restart: bool = False) -> None:
        """Unregister the client of a kernel that has ended.

        jupyter_client may call the method twice, never, or before the kernel's start.
        """
        registration, identity = self._registration, self.identity
        if not restart and registration is not None and identity is not None:
            self._registration = None
            if not registration.note:
                unregister = functools.partial(kernel_env.unregister_client, identity, socket=registration.socket)
                await asyncio.get_running_loop().run_in_executor(None, unregister)
        await super().cleanup(restart=restart)

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return the state of the provisioner for managers that persist their kernels.

        The state has the client's token, so it is as secret as a connection file.
        """
        info: dict[str, Any] = await super().get_provisioner_info()
        if self.identity is not None:
            info["gpushare"] = {**self.identity._asdict(), "quota": self.quota}
        return info

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Restore the state that `get_provisioner_info` has returned in another process."""
        await super().load_provisioner_info(provisioner_info)
        saved = provisioner_info.get("gpushare")
        if saved:
            self.identity = kernel_env.Identity(saved["client"], saved["token"])
            self.quota = saved["quota"]

    def _server_settings(self) -> tuple[traits.GpuShare, str]:
        """Return the Jupyter server's `c.GpuShare`, or the defaults with a message about the invalid setting."""
        try:
            return traits.GpuShare(parent=self), ""
        except TraitError as error:
            return traits.GpuShare(), f"the server's settings are invalid, so the defaults apply: {error}"

    def _simulate_option(self, settings: traits.GpuShare, env: Mapping[str, str]) -> bool | None:
        if self.simulate is not None:
            return bool(self.simulate)
        return True if settings.simulate or env.get("GPUSHARE_SIMULATE") == "1" else None

    def _kernel_name(self) -> str:
        return getattr(self.parent, "kernel_name", "") or self.kernel_spec.display_name or "kernel"
