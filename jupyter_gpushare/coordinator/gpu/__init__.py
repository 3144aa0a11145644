"""Devices of the host, as NVML and the simulated driver report them."""
