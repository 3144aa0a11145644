"""Starts notebook kernels shared: jupyter_client's local provisioner with another environment.

Named `gpushare-provisioner` in a kernelspec's `metadata.kernel_provisioner`, whose `config` sets the traits
below, or for all stock kernels by `c.KernelProvisionerFactory.default_provisioner_name =
"gpushare-provisioner"`.
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
    """One kernel's process, as one client of the coordinator.

    The client has the kernel's id, and keeps it together with its token and quota over restarts of the
    kernel. No connection is kept between calls: the blocking kernel manager runs each in another event loop.
    That the kernel is gone is noticed by its connections' end; `cleanup`, which jupyter_client may skip, only
    makes it certain.
    """

    share = Float(None, allow_none=True, config=True, help="Guaranteed fraction of the device's time, from 0 to 1.")
    limit = Float(
        None, allow_none=True, config=True, help="Largest fraction of the device's time, above 0 and up to 1."
    )
    memory = Union(
        [Unicode(), Integer()],
        default_value="",
        config=True,
        help='Device memory that the kernel may allocate, in bytes or as text such as "8GiB"; "0.5": half the device.',
    )
    resident = Union(
        [Unicode(), Integer()],
        default_value="",
        config=True,
        help="Device memory that the kernel may keep on the device while others wait, in bytes or as text.",
    )
    service = CaselessStrEnum(
        ["online", "offline"], None, allow_none=True, config=True, help="Online goes before offline."
    )
    device = Unicode(config=True, help="Which devices to choose from: UUID, index or name, several joined by +.")
    affinity = Unicode(config=True, help="A label: on the same device as others with it.")
    anti_affinity = Unicode(config=True, help="A label: on another device than others with it.")
    exclusion = Unicode(config=True, help="A label: the device is shared only with others that have it.")
    gpus = Integer(1, min=1, max=64, config=True, help="How many devices the kernel sees.")
    memory_mode = Unicode(
        config=True,
        help="How the kernel holds device memory: unified, swap or plain; default: $GPUSHARE_MEMORY_MODE, else as the "
        "coordinator says.",
    )
    label = Unicode(config=True, help="What to call the kernel in queues; default: the notebook's file name.")
    simulate = Bool(
        None,
        allow_none=True,
        config=True,
        help="Use the simulated driver; default: as $GPUSHARE_SIMULATE says, else as the coordinator does.",
    )
    coordinator = Unicode(config=True, help="Socket of the coordinator; default: $GPUSHARE_SOCKET or the host's.")
    start_wait = Float(
        3.0, min=0.0, max=60.0, config=True, help="Seconds that a starting kernel waits for a coordinator."
    )

    def __init__(self, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - set(self.trait_names()))
        for name in unknown:  # traitlets would drop them without a word
            kwargs.pop(name)
        super().__init__(**kwargs)
        if unknown:
            allowed = ", ".join(sorted(type(self).class_own_traits(config=True)))
            self.log.warning("Ignored unknown provisioner settings %s; known are %s.", ", ".join(unknown), allowed)
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
        """Called before each start and restart: makes the client known, within about `start_wait` seconds."""
        env = kwargs.get("env", os.environ)
        if self.identity is None:
            self.identity = kernel_env.Identity.new(self.kernel_id or "", prefix="kernel")
        settings, complaint = self._server_settings()
        self._label = self.label or kernel_env.label_of(env, self._kernel_name())
        announce = functools.partial(
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
        self._registration = await asyncio.get_running_loop().run_in_executor(None, announce)
        if complaint and not self._registration.note:
            self._registration = self._registration._replace(note=f"refused: {complaint}")
        if self._registration.note:
            self.log.warning("GPU sharing of kernel %s: %s", self.kernel_id, self._registration.note)
        kwargs = await super().pre_launch(**kwargs)
        kwargs["cmd"] = launcher.strip_wrapper(kwargs["cmd"])
        return kwargs

    def _finalize_env(self, env: dict[str, str]) -> None:
        """Called by the base class's `pre_launch`, on a copy to which the kernelspec's `env` was applied."""
        super()._finalize_env(env)
        if self.identity is None or self._registration is None:
            return
        if self.memory_mode:
            env["GPUSHARE_MEMORY_MODE"] = self.memory_mode
        made = kernel_env.build_environment(
            env,
            **self.identity._asdict(),
            label=self._label,
            quota=self.quota,
            python=(self.kernel_spec.language or "").lower().startswith("python"),
            **self._registration._asdict(),
        )
        env.clear()
        env.update(made)

    async def cleanup(self, restart: bool = False) -> None:
        """Called when the kernel is gone, perhaps twice, perhaps never, perhaps before it was started."""
        announced, identity = self._registration, self.identity
        if not restart and announced is not None and identity is not None:
            self._registration = None
            if not announced.note:
                farewell = functools.partial(kernel_env.unregister_client, identity, socket=announced.socket)
                await asyncio.get_running_loop().run_in_executor(None, farewell)
        await super().cleanup(restart=restart)

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Called by managers that persist their kernels. Holds the token: as secret as a connection file."""
        info: dict[str, Any] = await super().get_provisioner_info()
        if self.identity is not None:
            info["gpushare"] = {**self.identity._asdict(), "quota": self.quota}
        return info

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """The inverse of `get_provisioner_info`, in another process."""
        await super().load_provisioner_info(provisioner_info)
        ours = provisioner_info.get("gpushare")
        if ours:
            self.identity = kernel_env.Identity(ours["client"], ours["token"])
            self.quota = ours["quota"]

    def _server_settings(self) -> tuple[traits.GpuShare, str]:
        """The Jupyter server's `c.GpuShare`, or the defaults and what is wrong with it."""
        try:
            return traits.GpuShare(parent=self), ""
        except TraitError as error:
            return traits.GpuShare(), f"the server's settings are not used: {error}"

    def _simulate_option(self, settings: traits.GpuShare, env: Mapping[str, str]) -> bool | None:
        if self.simulate is not None:
            return bool(self.simulate)
        return True if settings.simulate or env.get("GPUSHARE_SIMULATE") == "1" else None

    def _kernel_name(self) -> str:
        return getattr(self.parent, "kernel_name", "") or self.kernel_spec.display_name or "kernel"
