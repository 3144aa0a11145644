"""Traits of a provisioner that describe the client of its kernel, and the client's identity."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jupyter_client.provisioning.provisioner_base import KernelProvisionerBase
from tornado import web
from traitlets import Bool, CaselessStrEnum, Float, Integer, TraitError, Unicode, Union, validate

from .config import quota_options, traits
from .launch import kernel_env

_QUOTA = ("share", "limit", "memory", "resident", "service", *quota_options.PLACEMENT_OPTIONS)


class RequestFailed(web.HTTPError):
    """Failed request, whose sentence Jupyter Server sends to the page. The page shows "Unhandled error" otherwise."""

    def __init__(self, sentence: str, reason: str, status: int = 500) -> None:
        super().__init__(status, sentence, reason=reason)
        self._sentence = sentence

    @functools.cached_property
    def log_message(self) -> str:
        """Return the sentence as Jupyter Server sends it. Tornado would double the percent signs."""
        return self._sentence

    def __str__(self) -> str:
        return self._sentence


class InvalidSetting(RequestFailed, TraitError):
    """Failed start by an invalid value in the kernelspec or in the server's settings."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error), "invalid_setting")


class ClientProvisioner(KernelProvisionerBase):
    """Base of the provisioners whose kernel is one client of a coordinator.

    The client has the kernel's id, and keeps its id, token and quota when the kernel restarts.
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
        help="Device memory that the kernel may keep on the device while other clients wait, and in mode unified in "
        "its own turns too: bytes or a text.",
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

    def __init__(self, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - set(self.trait_names()))
        for name in unknown:  # traitlets would drop these settings without a warning
            kwargs.pop(name)
        try:
            super().__init__(**kwargs)
            self.quota = quota_options.quota_text(**{name: getattr(self, name) for name in _QUOTA})
        except (TraitError, ValueError) as error:
            raise InvalidSetting(error) from None
        if unknown:
            allowed = ", ".join(
                sorted(
                    set(type(self).class_trait_names(config=True))
                    - set(KernelProvisionerBase.class_trait_names(config=True))
                )
            )
            self.log.warning("ignored unknown provisioner settings %s: allowed are %s", ", ".join(unknown), allowed)
        self.identity: kernel_env.Identity | None = None
        self.client_label = ""

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

    def identify_client(self, env: Mapping[str, str]) -> kernel_env.Identity:
        """Return the identity of the client, and set the label, before a start or a restart."""
        if self.identity is None:
            self.identity = kernel_env.Identity.new(self.kernel_id or "", prefix="kernel")
        self.client_label = self.label or kernel_env.label_of(env, self._kernel_name())
        return self.identity

    def server_settings(self) -> tuple[traits.GpuShare, str]:
        """Return the Jupyter server's `c.GpuShare`, or the defaults with a message about the invalid setting."""
        return traits.server_settings(self)

    def simulate_option(self, settings: traits.GpuShare, env: Mapping[str, str]) -> bool | None:
        """Return whether the client uses the simulated driver; None: the coordinator decides."""
        if self.simulate is not None:
            return bool(self.simulate)
        return True if settings.simulate or env.get("GPUSHARE_SIMULATE") == "1" else None

    @property
    def is_python(self) -> bool:
        """Return whether the kernel's language is Python."""
        return (self.kernel_spec.language or "").lower().startswith("python")

    def _kernel_name(self) -> str:
        return getattr(self.parent, "kernel_name", "") or self.kernel_spec.display_name or "kernel"
