"""Kernel provisioner that starts shared kernels: jupyter_client's local provisioner with another environment.

A kernelspec names `gpushare-provisioner` in `metadata.kernel_provisioner`, whose `config` sets the traits below.
For all other kernels, `c.KernelProvisionerFactory.default_provisioner_name = "gpushare-provisioner"` has the same
effect.
"""

from __future__ import annotations

import asyncio
import functools
import os
from typing import Any

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Float

from . import launcher
from .client_provisioner import ClientProvisioner
from .launch import kernel_env


class GpuShareProvisioner(ClientProvisioner, LocalProvisioner):
    """Provisioner of one kernel, which is one client of the coordinator.

    The provisioner keeps no connection between calls, because the blocking kernel manager runs each call in another
    event loop.
    The coordinator detects the end of a kernel by the end of the kernel's connections.
    `cleanup` only confirms the end, because jupyter_client may skip `cleanup`.
    """

    start_wait = Float(
        10.0, min=0.0, max=60.0, config=True, help="Seconds for which a starting kernel waits for a coordinator."
    )
    _registration: kernel_env.Registration | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Register the client before each start and restart, within about `start_wait` seconds."""
        env = kwargs.get("env", os.environ)
        identity = self.identify_client(env)
        settings, settings_problem = self.server_settings()
        register = functools.partial(
            kernel_env.register_client,
            identity,
            label=self.client_label,
            quota=self.quota,
            gpus=self.gpus,
            socket=self.coordinator or settings.coordinator or env.get("GPUSHARE_SOCKET", ""),
            simulate=self.simulate_option(settings, env),
            memory_mode=self.memory_mode or env.get("GPUSHARE_MEMORY_MODE", ""),
            settings=settings.argv(),
            wait=self.start_wait,
        )
        self._registration = await asyncio.get_running_loop().run_in_executor(None, register)
        if settings_problem and not self._registration.note:
            self._registration = self._registration._replace(note=f"defaults: {settings_problem}")
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
            label=self.client_label,
            quota=self.quota,
            python=self.is_python,
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
