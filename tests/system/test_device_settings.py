"""Test of two simulated devices with different settings: turns in order on one, colocation on the other."""

from __future__ import annotations

from .system_host import SystemHost, start_all_busy, stop_all, wait_until


def test_clients_are_colocated_on_the_device_that_allows_it(host: SystemHost) -> None:
    host.devices = 2
    host.start_coordinator(
        "--sharing",
        "packed",
        "--GpuShare.devices={'0': {'policy': 'fcfs', 'sharing': 'exclusive', 'time_quantum': 0.2}}",
    )
    programs = [
        host.program(f"on-{index}-{name}", CUDA_VISIBLE_DEVICES=index) for index in ("0", "1") for name in ("a", "b")
    ]
    start_all_busy(*programs)

    def phases(index: str) -> list[str]:
        return sorted(client["phase"] for name, client in host.clients().items() if name.startswith(f"on-{index}"))

    wait_until(lambda: phases("1") == ["running", "running"])
    before = {name: client["turn_count"] for name, client in host.clients().items()}
    for _ in range(20):
        assert phases("0") != ["running", "running"]
    wait_until(lambda: all(host.clients()[f"on-0-{name}"]["turn_count"] > before[f"on-0-{name}"] + 2 for name in "ab"))
    assert [client["turn_count"] - before[name] for name, client in host.clients().items() if "on-1" in name] == [0, 0]
    first, second = host.status()["devices"]
    assert first["settings"] == {"policy": "fcfs", "sharing": "exclusive", "time_quantum": 0.2}
    assert second["settings"] == {}
    stop_all(*programs)
