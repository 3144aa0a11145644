"""Table of settings: every trait of `c.GpuShare`.

The traits, their checks, the list of live settings, the schema of the REST interface
and docs/reference/configuration.md are made from these rows.
"""

from __future__ import annotations

from dataclasses import replace

from .setting import AUTO, Setting

DAY = 86400.0
NEVER = "never"
NO_BOUND = "no bound"
_IDLE = (1.0, 7 * DAY)
_COUNT = (1.0, 1e6)

# Settings that can be changed while a coordinator runs, in the order of the documents and of `jupyter gpushare config`.
_LIVE = (
    Setting(
        "time_quantum",
        "seconds",
        AUTO,
        "Length of a turn while other clients wait.",
        "'auto': from min_quantum to 30 seconds, so that changes of turns cost 5 % of the time. Under the policy "
        "'interactive' a turn goes on while all waiting clients have used the GPU for longer. The turn ends earlier "
        "for a waiting client that has used the GPU for less. Without waiting clients a turn has no end.",
        range=(0.001, DAY),
        auto=True,
    ),
    Setting(
        "policy",
        "choice",
        "interactive",
        "Rule that orders the waiting clients and sets the length of their turns.",
        "See docs/how-to/policies.md.",
        choices={
            "interactive": "short cells run before long ones",
            "fair": "time by the shares in quotas",
            "best_effort": "equal time for all clients that ask for the GPU",
            "fixed_share": "the share, and no more",
            "burst_share": "the share, and idle time",
            "weighted": "time in proportion to the shares",
            "fcfs": "first come, first served",
        },
    ),
    Setting(
        "idle_release",
        "seconds",
        AUTO,
        "Time without GPU work, within a cell, after which a waiting client gets the GPU.",
        "'auto': about as long as two changes of turns take.",
        range=(0.001, DAY),
        auto=True,
    ),
    Setting(
        "cell_linger",
        "seconds",
        0.05,
        "Time between the end of a cell and the end of the turn.",
        "'Run All' sends the next cell within this time, so the turn goes on.",
        range=(0.0, 60.0),
    ),
    Setting(
        "idle_warn",
        "seconds",
        AUTO,
        "Time without use after which a client's user gets a notice.",
        "'auto': ten minutes before the coordinator evicts or suspends the client.",
        range=_IDLE,
        zero=NEVER,
        auto=True,
    ),
    Setting(
        "idle_evict",
        "seconds",
        AUTO,
        "Time without use after which a client's memory is evicted from the GPU, until the client's next turn.",
        "'auto': half an hour, if the memory of all clients on the GPU exceeds the GPU's memory.",
        range=_IDLE,
        zero=NEVER,
        auto=True,
    ),
    Setting(
        "idle_suspend",
        "seconds",
        0.0,
        "Time without use after which a client is suspended, until its next cell or GPU call.",
        range=_IDLE,
        zero=NEVER,
    ),
    Setting(
        "idle_move",
        "seconds",
        0.0,
        "Time without use after which a client moves from a busy GPU to a GPU without work.",
        "Only clients in the memory modes 'swap' and 'plain' can move. See docs/how-to/placement.md.",
        range=_IDLE,
        zero=NEVER,
    ),
    Setting(
        "wait_move",
        "seconds",
        3.0,
        "Wait after which a client moves to a GPU without work.",
        "A cell that has worked for 10 seconds waits a third of the time. Only clients in the memory modes 'swap' and "
        "'plain' can move, and no client whose user has chosen its GPU moves. See docs/how-to/placement.md.",
        range=(0.1, DAY),
        zero=NEVER,
    ),
    Setting(
        "hibernate_after",
        "seconds",
        0.0,
        "Time without use after which a notebook hibernates: all of its memory leaves the GPU, contexts included.",
        "Only notebooks in the memory modes 'swap' and 'plain' can hibernate. See docs/how-to/hibernation.md.",
        range=_IDLE,
        zero=NEVER,
        note="a hibernated kernel stays so until its next use, and a kernel of mode unified does not hibernate",
    ),
    Setting(
        "sharing",
        "choice",
        AUTO,
        "Colocation: several clients run on one GPU at the same time.",
        choices={
            "exclusive": "never",
            AUTO: "if their memory fits together and colocation is faster than turns",
            "packed": "whenever their memory fits together",
        },
    ),
    Setting(
        "mps",
        "choice",
        AUTO,
        "Use of CUDA's Multi-Process Service (MPS) by clients that start later.",
        "Under the setting sharing 'packed', a client's share becomes its percentage of the threads. "
        "See docs/how-to/policies.md.",
        choices={
            AUTO: "where a control daemon runs and sharing is not 'exclusive'",
            "off": "never, although a control daemon runs",
        },
        title="MPS",
    ),
    Setting(
        "min_quantum",
        "seconds",
        0.1,
        "Shortest turn of a client that uses the GPU.",
        "An online client preempts an offline one before this time is over.",
        range=(0.001, 30.0),
    ),
    Setting(
        "max_wait",
        "seconds",
        300.0,
        "Time after which a waiting client is first within its class of service, whatever it has used before.",
        range=(1.0, DAY),
    ),
    Setting(
        "max_hold",
        "seconds",
        600.0,
        "Longest time that a client may keep the GPU between cells with `hold`.",
        range=(0.0, DAY),
    ),
    Setting(
        "overrun",
        "choice",
        "wait",
        "Treatment of an overrun: a turn should have ended, its GPU work goes on, and other clients wait.",
        "The coordinator never ends a process.",
        choices={
            "wait": "wait for the end of the work",
            "join": "after overrun_patience, run clients that fit into the free memory at the same time",
            "interrupt": "after overrun_patience, ask the client's kernel once to interrupt its cell",
        },
    ),
    Setting(
        "overrun_patience",
        "seconds",
        30.0,
        "Time between the report of an overrun and its treatment.",
        "The report comes about 10 seconds after the turn should have ended.",
        range=(0.0, DAY),
    ),
    Setting(
        "inflight_window",
        "seconds",
        0.02,
        "GPU work that a client may have submitted and unfinished while other clients wait. The bound keeps submitted "
        "work from delaying the end of the turn.",
        "A single launch may take longer.",
        range=(0.001, 10.0),
        zero=NO_BOUND,
    ),
    Setting(
        "exempt_launches",
        "seconds",
        0.0,
        "Longest launch of an offline client that the launch budget does not delay; 0: every launch counts.",
        "The launch budget bounds an offline client that is colocated with online clients. Short launches then pass "
        "without any bound.",
        range=(0.0, 0.1),
    ),
    Setting(
        "placement",
        "choice",
        "spread",
        "Choice of the device for a new client.",
        choices={
            "spread": "the device with the fewest clients",
            "pack": "the device with the least free room that is enough",
            "fgd": "the device on which the least free room becomes unusable for later clients",
        },
    ),
    Setting(
        "oversubscription",
        "number",
        0.0,
        "Largest sum of the memory quotas on a device, as a multiple of the device's memory.",
        "Placement prefers devices on which the memory fits in any case.",
        range=(1.0, 1000.0),
        zero=NO_BOUND,
    ),
    Setting(
        "tenants",
        "object",
        {},
        "Groups of users with ceilings and guaranteed devices, by name.",
        "For example {'students': {'groups': ['students'], 'share': 1.5, 'limit': 0.5, 'memory': '8GiB', "
        "'max_clients': 20, 'cells': {'socket': 1}}}. See docs/how-to/placement.md.",
    ),
    Setting(
        "default_quota",
        "quota",
        {},
        "Quota of a client that asks for nothing else.",
        "For example {'memory': '8GiB', 'limit': 0.9} or 'memory=8GiB limit=0.9'. Keys: share, limit, memory, resident "
        "and service (or class).",
        note="open kernels and running programs keep their quota",
    ),
    Setting(
        "memory_mode",
        "choice",
        "unified",
        "Memory mode of clients that choose none.",
        "See docs/explanation/memory.md.",
        choices={
            "unified": "memory may exceed the device",
            "swap": "memory is evicted and restored with the turns, at the speed of the link",
            "plain": "memory never moves; for programs that pass device memory between processes",
        },
        note="open kernels and running programs keep their memory mode until they are restarted",
    ),
    Setting(
        "pinned_memory",
        "size",
        "",
        "Host memory that each process in memory mode 'swap' may pin for evicted memory; empty: four small buffers.",
        "Copies to pinned memory are as fast as the link.",
        note="open kernels and running programs keep their bound until they are restarted",
    ),
    Setting(
        "release_caches",
        "switch",
        True,
        "Release the cached memory of PyTorch and CuPy in notebooks at the end of each cell while memory is short.",
        "Memory is short while the clients of a GPU have allocated more than the GPU has, and for a minute after that.",
    ),
    Setting(
        "devices",
        "object",
        {},
        "Settings of single devices, by UUID, index or name.",
        "For example {'0': {'policy': 'fcfs', 'sharing': 'exclusive'}, 'H200': {'time_quantum': '10s'}}. All other "
        "settings of these devices are those of the host. See docs/how-to/policies.md.",
    ),
    Setting(
        "max_connections",
        "count",
        1024,
        "Connections of one user at the same time: kernels, front ends, processes.",
        range=_COUNT,
        zero=NO_BOUND,
    ),
    Setting(
        "max_processes",
        "count",
        512,
        "Processes of one user that use the GPU at the same time.",
        "Further processes take turns without the coordinator, by lock files.",
        range=_COUNT,
        zero=NO_BOUND,
    ),
    Setting(
        "max_clients",
        "count",
        256,
        "Clients of one user at the same time.",
        range=_COUNT,
        zero=NO_BOUND,
    ),
    Setting(
        "max_messages",
        "count",
        1000,
        "Messages a second that the coordinator reads from one connection.",
        "Further messages wait.",
        range=_COUNT,
        zero=NO_BOUND,
    ),
)

# Settings of `_LIVE` that can have another value on some devices: what the scheduler decides for each device.
PER_DEVICE = (
    "time_quantum",
    "policy",
    "idle_release",
    "cell_linger",
    "idle_warn",
    "idle_evict",
    "idle_suspend",
    "idle_move",
    "wait_move",
    "hibernate_after",
    "sharing",
    "min_quantum",
    "max_wait",
    "max_hold",
    "overrun",
    "overrun_patience",
)

# Settings that are fixed while a coordinator runs and that every user sees.
_PUBLIC = (
    Setting(
        "topology",
        "text",
        "",
        "JSON file with the PCIe switch and the socket of each device; empty: the coordinator asks NVML.",
        "See docs/how-to/placement.md.",
    ),
    Setting(
        "device_memory",
        "size",
        "",
        "Memory of each device that clients share; empty: all of it.",
        "The rest of the device's memory is then left to programs that are no clients.",
    ),
    Setting(
        "simulate",
        "switch",
        False,
        "Use the simulated CUDA driver instead of a real one.",
        "Every view marks the device as simulated. No GPU is used.",
    ),
)

# Settings that are fixed while a coordinator runs and that no user sees.
_PRIVATE = (
    Setting(
        "identity",
        "choice",
        "uid",
        "Property of a process that identifies the user of a client.",
        "In containers all processes have the same uid. See docs/how-to/multiuser.md.",
        choices={
            "uid": "its uid, from the Linux kernel",
            "socket": "the socket that it connects to, see sockets",
            "cgroup": "its cgroup, see cgroup_user",
        },
    ),
    Setting(
        "sockets",
        "object",
        {},
        "Socket of each user, with identity 'socket'.",
        "For example {'ada': '/run/gpushare/users/ada/coordinator.sock'}. Every process that can connect to the socket "
        "belongs to that user.",
    ),
    Setting(
        "cgroup_user",
        "text",
        r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27})"  # Kubernetes
        r"|(?:docker|libpod|crio|cri-containerd)-([0-9a-f]{64})|/docker/([0-9a-f]{64})"
        r"|/jupyter-([^/]+)\.service|/user-(\d+)\.slice",  # systemdspawner; logins
        "Regular expression for the path of a process's cgroup, with identity 'cgroup'. The first group that matches "
        "is the user.",
        "If there are several matches, the match nearest to the root counts.",
    ),
    Setting(
        "admins",
        "list",
        [],
        "Users, by name or uid, that may change every client and the settings. Root and the coordinator's own user "
        "are admins too.",
        "For example ['ada'].",
    ),
    Setting("admin_groups", "list", [], "Unix groups whose members are admins.", "For example ['gpu-admins']."),
    Setting(
        "metrics",
        "text",
        "",
        "Address at which the coordinator serves /metrics to Prometheus; empty: it does not.",
        "'127.0.0.1:9400', '[::1]:9400', 'unix:/path', or, for other hosts, 'open:0.0.0.0:9400'. "
        "See docs/reference/metrics.md.",
    ),
    Setting(
        "usage_kept",
        "days",
        400.0,
        "Time for which the coordinator keeps the usage of the GPUs by user.",
        "The last month is kept by hours.",
        range=(1.0, 36500.0),
    ),
    Setting(
        "coordinator",
        "text",
        "",
        "Socket address of the coordinator, /path or unix:/path; empty: the system's coordinator, or one that is "
        "started on demand.",
    ),
)

LIVE = tuple(row.name for row in _LIVE)
PUBLIC = (*LIVE, *(row.name for row in _PUBLIC))
SETTINGS = {
    row.name: replace(row, live=row in _LIVE, per_device=row.name in PER_DEVICE)
    for row in (*_LIVE, *_PUBLIC, *_PRIVATE)
}
