"""The table of settings: every trait of `c.GpuShare`.

The traits, their checks, the settings that can be changed live, the schema that the REST interface serves and
docs/reference/configuration.md come from these rows.
"""

from __future__ import annotations

from dataclasses import replace

from .setting import AUTO, Setting

DAY = 86400.0
NEVER = "never"
NO_BOUND = "no bound"
_IDLE = (1.0, 7 * DAY)
_COUNT = (1.0, 1e6)

# Changed while a coordinator runs; in the order of the documentation and of `jupyter gpushare config`.
_LIVE = (
    Setting(
        "time_quantum",
        "seconds",
        AUTO,
        "Length of a turn while other clients wait.",
        "'auto': from min_quantum to 30 seconds, so that switching costs 5 % of the time. Under the policy "
        "'interactive' a turn goes on while all waiting clients have used the GPU for longer, and ends earlier for a "
        "client that has used the GPU for less. Without waiting clients a turn has no end.",
        range=(0.001, DAY),
        auto=True,
    ),
    Setting(
        "policy",
        "choice",
        "interactive",
        "Choice of the client that is next, and for how long.",
        "See docs/how-to/policies.md.",
        choices={
            "interactive": "short cells overtake long ones",
            "fair": "by the shares in quotas",
            "best_effort": "equal parts for all clients that ask",
            "fixed_share": "the share, and no more",
            "burst_share": "the share, and idle time",
            "weighted": "in proportion to the shares",
            "fcfs": "first come, first served",
        },
    ),
    Setting(
        "idle_release",
        "seconds",
        AUTO,
        "Time without GPU work, within a cell, after which the GPU passes on to waiting clients.",
        "'auto': about as long as it takes to pass the GPU on and to get it back.",
        range=(0.001, DAY),
        auto=True,
    ),
    Setting(
        "cell_linger",
        "seconds",
        0.05,
        "Time after the end of a cell before the GPU passes on.",
        "'Run All' sends the next cell at once.",
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
        "Time without use after which a client's memory leaves the GPU, until the client's next turn.",
        "'auto': half an hour, where the GPU has too little memory for all clients that share it.",
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
        "sharing",
        "choice",
        AUTO,
        "Clients at the same time on one GPU.",
        choices={
            "exclusive": "never",
            AUTO: "if their memory fits together and that is faster than turns",
            "packed": "whenever their memory fits together",
        },
    ),
    Setting(
        "tuning",
        "switch",
        False,
        "Trials by the scheduler, which keep what makes people wait least.",
        "The trials vary the time that switching may take, where time_quantum is 'auto', and the wait for more work, "
        "where idle_release is 'auto'.",
    ),
    Setting(
        "min_quantum",
        "seconds",
        0.1,
        "Shortest turn while it is used.",
        "Online clients do not wait for it.",
        range=(0.001, 30.0),
    ),
    Setting(
        "max_wait",
        "seconds",
        300.0,
        "Time after which a waiting client goes first within its service class, however much it used the GPU before.",
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
        "Treatment of a turn that is over and whose GPU work does not end while others wait.",
        "No process is ever ended.",
        choices={
            "wait": "for the end of the work",
            "join": "after overrun_patience, clients whose memory fits run beside it",
            "interrupt": "after overrun_patience, its kernel is asked, once, to interrupt its cell",
        },
    ),
    Setting(
        "overrun_patience",
        "seconds",
        30.0,
        "Time between the report of an overrun, about 10 seconds after the turn should have ended, and its treatment.",
        range=(0.0, DAY),
    ),
    Setting(
        "inflight_window",
        "seconds",
        0.02,
        "GPU work that a client may have outstanding while others wait, so that queued work does not delay the end of "
        "its turn.",
        "A single launch may take longer.",
        range=(0.001, 10.0),
        zero=NO_BOUND,
    ),
    Setting(
        "exempt_launches",
        "seconds",
        0.0,
        "Launches of functions that take less time pass by the rate that holds an offline client back beside online "
        "ones; 0: none.",
        "Endless short launches then pass too.",
        range=(0.0, 0.1),
    ),
    Setting(
        "placement",
        "choice",
        "spread",
        "Device of a new client, where there are several.",
        choices={
            "spread": "the one with the fewest clients",
            "pack": "the one with the least room that is enough",
            "fgd": "the one where the least room becomes unusable for later clients",
        },
    ),
    Setting(
        "oversubscription",
        "number",
        0.0,
        "How often a device's memory may be promised to clients that ask for a share of it with `memory`.",
        "Devices on which the memory fits are preferred in any case.",
        range=(1.0, 1000.0),
        zero=NO_BOUND,
    ),
    Setting(
        "tenants",
        "object",
        {},
        "Groups of users with ceilings and devices of their own, by name.",
        "For example {'students': {'groups': ['students'], 'share': 1.5, 'limit': 0.5, 'memory': '8GiB', "
        "'max_clients': 20, 'cells': {'socket': 1}}}. See docs/how-to/placement.md.",
    ),
    Setting(
        "default_quota",
        "object",
        {},
        "Quota of a client that asks for nothing else.",
        "For example {'memory': '8GiB', 'limit': 0.9}. Keys: share, limit, memory, resident, service (or class).",
    ),
    Setting(
        "memory_mode",
        "choice",
        "unified",
        "How clients that name no mode hold device memory.",
        "See docs/explanation/memory.md.",
        choices={
            "unified": "may exceed the device",
            "swap": "copied out and in with the turns, at the speed of the link",
            "plain": "never moved; for programs that pass device memory between processes",
        },
    ),
    Setting(
        "pinned_memory",
        "size",
        "",
        "Host memory that each process in memory mode 'swap' may pin for memory that has left the device; empty: none "
        "but two small buffers.",
        "Copies to pinned memory are as fast as the link.",
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
        "Further ones go by lock files.",
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
        "Messages a second that the coordinator takes from one connection.",
        "Further messages wait.",
        range=_COUNT,
        zero=NO_BOUND,
    ),
)

# Fixed while a coordinator runs, and shown to every user.
_PUBLIC = (
    Setting(
        "topology",
        "text",
        "",
        "JSON file that says which devices are behind which PCIe switch on which socket; empty: as NVML says.",
        "See docs/how-to/placement.md.",
    ),
    Setting(
        "device_memory",
        "size",
        "",
        "Memory that each device is taken to hold at most; empty: all of it.",
        "A part of a card can so be kept out of sharing.",
    ),
    Setting(
        "simulate",
        "switch",
        False,
        "Use the simulated CUDA driver instead of a real one.",
        "Every view says so; no GPU is touched.",
    ),
)

# Fixed while a coordinator runs, and shown to no user.
_PRIVATE = (
    Setting(
        "identity",
        "choice",
        "uid",
        "How the coordinator knows the user of a client.",
        "In containers all processes have the same uid. See docs/how-to/multiuser.md.",
        choices={
            "uid": "of the process, as the kernel says",
            "socket": "one socket per user, see sockets",
            "cgroup": "of the process, see cgroup_user",
        },
    ),
    Setting(
        "sockets",
        "object",
        {},
        "With identity 'socket': the socket of each user.",
        "For example {'ada': '/run/gpushare/users/ada/coordinator.sock'}. Every process that can connect to it is that "
        "user's.",
    ),
    Setting(
        "cgroup_user",
        "text",
        r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27})"  # Kubernetes
        r"|(?:docker|libpod|crio|cri-containerd)-([0-9a-f]{64})|/docker/([0-9a-f]{64})"
        r"|/jupyter-([^/]+)\.service|/user-(\d+)\.slice",  # systemdspawner; logins
        "With identity 'cgroup': a regular expression; the match of its first group in the path of a process's cgroup "
        "is the user.",
        "Of several matches the one nearest to the root counts.",
    ),
    Setting(
        "admins",
        "list",
        [],
        "Users, by name or uid, who may change everybody's clients and the settings, beside root and the coordinator's "
        "own user.",
        "For example ['ada'].",
    ),
    Setting("admin_groups", "list", [], "Unix groups whose members are admins.", "For example ['gpu-admins']."),
    Setting(
        "metrics",
        "text",
        "",
        "Address where the coordinator itself serves /metrics to Prometheus; empty: nowhere.",
        "'127.0.0.1:9400', '[::1]:9400', 'unix:/path', or, for other hosts, 'open:0.0.0.0:9400'. "
        "See docs/reference/metrics.md.",
    ),
    Setting(
        "usage_kept",
        "days",
        400.0,
        "Time for which the coordinator keeps the use of the GPUs by user; the last month by hours.",
        range=(1.0, 36500.0),
    ),
    Setting(
        "coordinator",
        "text",
        "",
        "Socket address of the coordinator, /path or unix:/path; empty: found, or started on demand.",
    ),
)

LIVE = tuple(row.name for row in _LIVE)
PUBLIC = (*LIVE, *(row.name for row in _PUBLIC))
SETTINGS = {row.name: replace(row, live=row in _LIVE) for row in (*_LIVE, *_PUBLIC, *_PRIVATE)}
