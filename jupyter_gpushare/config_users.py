"""What admins set where several users share a host: who is who, who is an admin, what one user may take.

Part of `c.GpuShare`.
"""

from __future__ import annotations

import os
import re
from typing import Any

from traitlets import Dict, Enum, Int, List, TraitError, Unicode, validate
from traitlets.config import Configurable

from .wire import address

_MOST = 1_000_000


class Count(Int):  # type: ignore[type-arg]
    """A whole number from 0 on; traitlets takes True for 1."""

    def validate(self, obj: Any, value: Any) -> Any:
        number = value if isinstance(value, bool) else super().validate(obj, value)  # 5.0 comes back as 5
        if isinstance(number, bool) or not 0 <= number <= _MOST:
            raise TraitError(f"GpuShare.{self.name} must be a whole number from 1 to {_MOST}, or 0, not {value}")
        return number


class ManyUsers(Configurable):
    """These settings, for `GpuShare`."""

    identity = Enum(
        ("uid", "socket", "cgroup"),
        "uid",
        help="How the coordinator knows whose a client is: 'uid' (of the process, as the kernel says), 'socket' (one "
        "socket per user, see sockets) or 'cgroup' (of the process, see cgroup_user), where all have the same uid, as "
        "in containers. See docs/multiuser.md.",
    ).tag(config=True)

    sockets = Dict(
        help="With identity 'socket': the socket of each user, for example {'ada': "
        "'/run/gpushare/users/ada/coordinator.sock'}. Whoever can connect to it is that user.",
    ).tag(config=True)

    cgroup_user = Unicode(
        r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27})"  # Kubernetes
        r"|(?:docker|libpod|crio|cri-containerd)-([0-9a-f]{64})|/docker/([0-9a-f]{64})"
        r"|/jupyter-([^/]+)\.service|/user-(\d+)\.slice",  # systemdspawner; logins
        help="With identity 'cgroup': a regular expression; what its first group matches in the path of a process's "
        "cgroup is the user. Where it matches several parts, the one nearest to the root counts.",
    ).tag(config=True)

    admins = List(
        Unicode(),
        help="Users, by name or uid, who may change everybody's clients and the settings, beside root and the "
        "coordinator's own user, for example ['ada'].",
    ).tag(config=True)

    admin_groups = List(Unicode(), help="Unix groups whose members are admins, for example ['gpu-admins'].").tag(
        config=True
    )

    max_connections = Count(
        1024, help="Connections of one user at the same time (kernels, front ends, processes); 0: no bound."
    ).tag(config=True)

    max_processes = Count(
        512,
        help="Processes of one user that use the GPU at the same time; 0: no bound. Further ones go by lock files.",
    ).tag(config=True)

    max_clients = Count(256, help="Clients of one user at the same time; 0: no bound.").tag(config=True)

    max_messages = Count(
        1000,
        help="Messages a second that are taken from one connection; 0: no bound. Who sends more is heard later.",
    ).tag(config=True)

    @validate("sockets")
    def _check_sockets(self, proposal: dict[str, Any]) -> dict[str, str]:
        value = proposal["value"]
        for user, path in value.items():
            if not isinstance(user, str) or not user or not isinstance(path, str):
                raise TraitError(f"GpuShare.sockets: {{{user!r}: {path!r}}} is no user with a path")
            try:
                address.socket_path(path or ".")
            except address.BadAddress as error:
                raise TraitError(f"GpuShare.sockets: {user}: {error}") from None
        if len(set(value.values())) < len(value):
            raise TraitError("GpuShare.sockets: two users have the same socket, and would be the same user")
        return {user: os.path.normpath(path) for user, path in value.items()}

    @validate("cgroup_user")
    def _check_pattern(self, proposal: dict[str, Any]) -> str:
        try:
            re.compile(proposal["value"])
        except re.error as error:
            raise TraitError(f"GpuShare.cgroup_user: {proposal['value']!r} is no regular expression: {error}") from None
        return str(proposal["value"])
